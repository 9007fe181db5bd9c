"""One `torch.autograd.Function` per call: forward leaves a tape, backward reverses it.

The node takes the differentiable inputs and captures and gives one tensor per output and instance,
so that backward can go through some instances now and others later. With `create_graph` the call is
replayed under autograd instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from penstock.autodiff.backward import go_backward
from penstock.autodiff.bounded.program_runs import BoundedRun
from penstock.autodiff.bounded.queued import BoundedQueuedRun
from penstock.autodiff.call import DifferentiableCall, find_tensors
from penstock.autodiff.ends import CallEnds
from penstock.autodiff.poured import PouredTape
from penstock.autodiff.queued import QueuedTapedRun
from penstock.autodiff.taped_run import TapedRun
from penstock.run.engine import Columns
from penstock.run.executable import Executable
from penstock.run.faults import Numbers, user_errors
from penstock.run.inputs import tensors_of
from penstock.run.memory.policy import KEEP, current_policy
from penstock.run.outputs import collect_outputs
from penstock.run.seeds import Seed


def asks_for_gradients(columns: Columns, captures: Sequence[torch.Tensor]) -> bool:
    """Whether a call must leave a tape."""
    if not torch.is_grad_enabled():
        return False
    return any(tensor.requires_grad for tensor in captures) or any(
        tensor.requires_grad for column in columns for tensor in tensors_of(column)
    )


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
    with user_errors(numbers), executable.recorded(count) as made.recorder:
        outputs = CallNode.apply(made, *tensors)  # type: ignore[no-untyped-call]
    return collect_rows(made, outputs)


def collect_rows(
    made: DifferentiableCall, outputs: Sequence[torch.Tensor]
) -> list[list[torch.Tensor] | torch.Tensor]:
    """The rows of each output, put together from what a call's node gave."""
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
            run = made.taped = _new_run(made)
            run.carry_out(made.columns)
            if run.poured is not None:
                run.tape = PouredTape(run, run.poured)
            outputs = split_outputs(run, made)
        run.finish()
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        """Reverse the tape; replay it where the gradients must be differentiable themselves."""
        return None, *go_backward(CallEnds(ctx.made), grads)


def _new_run(made: DifferentiableCall) -> TapedRun:
    """The run of a call, under the memory policy that holds here."""
    call = made.executable, made.captures, made.count, made.numbers, made.seed
    policy = current_policy() or KEEP
    if made.executable.placement is not None:
        if policy.kind == "keep":
            return QueuedTapedRun(*call, recorder=made.recorder, wires=made.wires)
        return BoundedQueuedRun(*call, recorder=made.recorder, wires=made.wires, policy=policy)
    if policy.kind == "keep":
        return TapedRun(*call, recorder=made.recorder, wires=made.wires)
    return BoundedRun(*call, recorder=made.recorder, wires=made.wires, policy=policy)


def split_outputs(run: TapedRun, made: DifferentiableCall) -> tuple[torch.Tensor, ...]:
    """The tensors through which gradients flow; the others are left with the call."""
    return run.with_room(lambda: _split(run, made))


def _split(run: TapedRun, made: DifferentiableCall) -> tuple[torch.Tensor, ...]:
    """The same; where memory has run out on the way it begins anew."""
    made.plain, made.flowing = {}, []
    columns = collect_outputs(run.outcome, run.arena)
    flowing: list[torch.Tensor] = []
    for position, (wire, column) in enumerate(zip(made.entry.outputs, columns, strict=True)):
        is_joined = made.is_joined and column.has_one_shape
        if wire not in run.wires:
            made.plain[position] = column.stacked() if is_joined else column.rows()
        elif is_joined:
            flowing.append(column.stacked())
            made.flowing.append((position, None))
        else:
            flowing.extend(column.separate_rows())
            made.flowing.extend((position, instance) for instance in range(made.count))
    return tuple(flowing)
