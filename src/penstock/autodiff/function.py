"""One `torch.autograd.Function` per call: forward leaves a tape, backward reverses it.

The node takes the differentiable inputs and captures and gives one tensor per output and instance,
so that backward can go through some instances now and others later. With `create_graph` the call is
replayed under autograd instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from penstock.autodiff.anomalies import place_of
from penstock.autodiff.call import DifferentiableCall, find_tensors
from penstock.autodiff.ends import input_gradients, seed_gradients
from penstock.autodiff.replay import replay_gradients
from penstock.autodiff.reverse import NanFound, Reversal
from penstock.autodiff.tape import Tape, TapedRun
from penstock.autodiff.torch_engine import keeps_graph, looks_for_nan, without_modes
from penstock.run.engine import Columns, Executable
from penstock.run.faults import Numbers, user_errors
from penstock.run.outputs import collect_outputs
from penstock.run.recording import recorded_call
from penstock.run.seeds import Seed


def asks_for_gradients(columns: Columns, captures: Sequence[torch.Tensor]) -> bool:
    """Whether a call must leave a tape."""
    if not torch.is_grad_enabled():
        return False
    return any(tensor.requires_grad for tensor in captures) or any(
        _requires_grad(column) for column in columns
    )


def _requires_grad(column: Sequence[torch.Tensor] | torch.Tensor) -> bool:
    if isinstance(column, torch.Tensor):
        return column.requires_grad
    return any(tensor.requires_grad for tensor in column)


def run_with_gradients(
    executable: Executable,
    columns: Columns,
    captures: Sequence[torch.Tensor],
    count: int,
    numbers: Numbers = None,
    seed: Seed | None = None,
    *,
    is_joined: bool = False,
) -> list[list[torch.Tensor] | torch.Tensor]:
    """The rows of each output, connected to the inputs and captures that ask for gradients.

    With `is_joined`, an output that has one shape for all instances is one tensor of all rows.
    """
    tensors, places = find_tensors(columns, captures)
    made = DifferentiableCall(executable, columns, captures, count, numbers, seed, tensors, places)
    made.is_joined = is_joined
    with user_errors(numbers), recorded_call(executable.graph, count) as made.recorder:
        outputs = CallNode.apply(made, *tensors)  # type: ignore[no-untyped-call]
    found: dict[int, Any] = dict(made.plain)
    for (output, instance), tensor in zip(made.flowing, outputs, strict=True):
        if instance is None:
            found[output] = tensor
        else:
            found.setdefault(output, []).append(tensor)
    return [found[k] for k in range(len(made.entry.outputs))]


class CallNode(torch.autograd.Function):
    """The autograd node of one call."""

    @staticmethod
    def forward(ctx: Any, made: DifferentiableCall, *tensors: torch.Tensor) -> Any:
        """Run with a tape."""
        ctx.made = made
        ctx.set_materialize_grads(False)
        with torch.inference_mode(False), torch.no_grad():
            run = made.taped = TapedRun(
                made.executable,
                made.captures,
                made.count,
                made.numbers,
                made.seed,
                recorder=made.recorder,
            )
            run.tape = Tape(made.wires)
            run.carry_out(made.columns)
            outputs = _split_outputs(run, made)
        run.finish()
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        """Reverse the tape; replay it where the gradients must be differentiable themselves."""
        made: DifferentiableCall = ctx.made
        keep = keeps_graph()
        checks_nan = looks_for_nan() or (made.recorder is not None and made.recorder.checks_nan)
        with without_modes():
            if torch.is_grad_enabled():
                return None, *replay_gradients(made, grads, keep)
            return None, *_reverse(made, grads, keep, checks_nan)


def _split_outputs(run: TapedRun, made: DifferentiableCall) -> tuple[torch.Tensor, ...]:
    """The tensors through which gradients flow; the others are left with the call."""
    columns = collect_outputs(run.machine, run.arenas, made.entry)
    flowing: list[torch.Tensor] = []
    for position, (wire, column) in enumerate(zip(made.entry.outputs, columns, strict=True)):
        is_joined = made.is_joined and column.has_one_shape
        if wire not in run.tape.wires:
            made.plain[position] = column.stacked() if is_joined else column.rows()
        elif is_joined:
            flowing.append(column.stacked())
            made.flowing.append((position, None))
        else:
            flowing.extend(column.separate_rows())
            made.flowing.extend((position, instance) for instance in range(made.count))
    return tuple(flowing)


def _reverse(
    made: DifferentiableCall, grads: Sequence[torch.Tensor | None], keep: bool, checks_nan: bool
) -> list[torch.Tensor | None]:
    reversal = Reversal(made.run, keep, made.recorder, checks_nan)
    with torch.no_grad():
        seed_gradients(made, reversal, grads)
        try:
            reversal.run()
        except NanFound as found:
            raise place_of(found, made) from None
        return input_gradients(made, reversal)
