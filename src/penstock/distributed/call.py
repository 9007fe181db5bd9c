"""Calls of programs that have places in several processes: with and without gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from penstock.autodiff.call import DifferentiableCall, find_tensors
from penstock.autodiff.function import asks_for_gradients, collect_rows, split_outputs
from penstock.distributed import torch_group
from penstock.distributed.backward import go_backward
from penstock.distributed.bounded import BoundedPlacedRun, reversal_kind
from penstock.distributed.processes import current_transport
from penstock.distributed.queued import QueuedPlacedRun, QueuedPlacedTapedRun
from penstock.distributed.run import PlacedRun, PlacedTapedRun, ranks_of_devices
from penstock.distributed.transport import Transport
from penstock.errors import ArgumentError, report
from penstock.run.engine import Columns
from penstock.run.executable import Executable
from penstock.run.faults import Numbers, user_errors
from penstock.run.memory.policy import KEEP, current_policy
from penstock.run.outputs import collect_outputs
from penstock.run.seeds import Seed

Outputs = list[list[torch.Tensor] | torch.Tensor]


def run_placed(
    executable: Executable,
    columns: Columns,
    captures: Sequence[torch.Tensor],
    count: int,
    numbers: Numbers = None,
    seed: Seed | None = None,
    *,
    is_joined: bool = False,
) -> Outputs:
    """The rows of each output, the same on every rank."""
    transport = current_transport()
    _check_ranks(executable, transport)
    if asks_for_gradients(columns, captures):
        tensors, where = find_tensors(columns, captures)
        made = DifferentiableCall(
            executable, columns, captures, count, numbers, seed, tensors, where
        )
        made.is_joined = is_joined
        with user_errors(numbers), executable.recorded(count) as made.recorder:
            outputs = PlacedCallNode.apply(made, transport, *tensors)  # type: ignore[no-untyped-call]
        return collect_rows(made, outputs)
    with torch.no_grad(), user_errors(numbers), executable.recorded(count) as recorder:
        kind = QueuedPlacedRun if _has_several(executable, transport) else PlacedRun
        run = kind(executable, captures, count, numbers, seed, recorder=recorder)
        run.place(transport)
        run.carry_out(columns)
        found = run.with_room(lambda: collect_outputs(run.outcome, run.arena))
    return [column.stacked() if is_joined else column.rows() for column in found]


class PlacedCallNode(torch.autograd.Function):
    """The autograd node of one call in several processes."""

    @staticmethod
    def forward(
        ctx: Any,
        made: DifferentiableCall,
        transport: Transport,
        *tensors: torch.Tensor,
    ) -> Any:
        """Run with a tape."""
        ctx.made = made
        ctx.set_materialize_grads(False)
        with torch.inference_mode(False), torch.no_grad():
            run = made.taped = _new_run(made, transport)
            run.place(transport)
            run.carry_out(made.columns)
            outputs = split_outputs(run, made)
        run.finish()
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        """Reverse the tape, together with all other ranks."""
        made = ctx.made
        return None, None, *go_backward(made, grads, reversal_kind(made.run))


def _new_run(made: DifferentiableCall, transport: Transport) -> PlacedTapedRun:
    """This rank's part of a call, under the memory policy that holds here; only where everything is
    kept its devices run at the same time.
    """
    call = made.executable, made.captures, made.count, made.numbers, made.seed
    policy = current_policy() or KEEP
    if policy.kind == "keep":
        is_queued = _has_several(made.executable, transport)
        kind = QueuedPlacedTapedRun if is_queued else PlacedTapedRun
        return kind(*call, recorder=made.recorder, wires=made.wires)
    return BoundedPlacedRun(*call, recorder=made.recorder, wires=made.wires, policy=policy)


def is_spread(executable: Executable) -> bool:
    """Whether a program has devices in several processes, and there are several.

    Where no process group was made, all ranks are queues of this process.
    """
    placement = executable.placement
    if placement is None or not any(device.rank for device in placement.devices):
        return False
    return torch_group.are_several()


def _has_several(executable: Executable, transport: Transport) -> bool:
    """Whether this rank has several devices, so that each gets a thread."""
    return ranks_of_devices(executable).count(transport.rank) > 1


def _check_ranks(executable: Executable, transport: Transport) -> None:
    highest = max(ranks_of_devices(executable))
    if highest >= transport.size:
        raise ArgumentError(
            report(
                "the program has a place on a rank that the process group does not have.",
                facts=[
                    ("placed on", f"rank {highest}"),
                    ("the group has", f"{transport.size} ranks, from 0"),
                ],
                todo=f"Start {highest + 1} processes (`torchrun --nproc-per-node {highest + 1}`), "
                "or change `ps.device`.",
            )
        )
