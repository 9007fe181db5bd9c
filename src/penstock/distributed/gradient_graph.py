"""Gradients of gradients over several processes.

Each rank has a graph of its own, whose hops exchange rows with the others. It is hidden in one
autograd node: in front of it and behind it all ranks have the same values. The graph gives this
rank's parts of the gradients; the node gives their sums over all ranks, to every rank, so that a
loss of gradients is the same everywhere. A cotangent of a sum is one of each part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from penstock.autodiff.bounded.reversal import rest
from penstock.autodiff.call import DifferentiableCall
from penstock.autodiff.ends import CallEnds
from penstock.autodiff.torch_engine import keeps_graph, without_modes
from penstock.distributed.agreement import agree_on_backward
from penstock.distributed.messages import RollingDigest
from penstock.distributed.replay import PlacedReplay
from penstock.distributed.run import PlacedTapedRun
from penstock.distributed.sums import Gradients, sum_gradients
from penstock.distributed.users import shared_tensors, users_of


@dataclass(frozen=True, slots=True, eq=False)
class PartGraph:
    """This rank's parts of some gradients, as a graph of leaves."""

    made: DifferentiableCall
    #: 1 for gradients, 2 for gradients of gradients.
    order: int
    #: What the node takes: the tensors of the call, then the cotangents of each pass so far.
    leaves: list[torch.Tensor]
    parts: Sequence[torch.Tensor | None]
    #: Before the first hop, and behind the last.
    start: torch.Tensor
    token: torch.Tensor

    def differentiate(self, grads: Sequence[torch.Tensor | None]) -> PartGraph:
        """The gradients of the leaves, given cotangents of the sums."""
        given = [None if grad is None else _leaf(grad) for grad in grads]
        pairs = [
            (part, grad)
            for part, grad in zip(self.parts, given, strict=True)
            if part is not None and grad is not None and part.requires_grad
        ]
        return self.go_back(self.order + 1, pairs, [grad for grad in given if grad is not None])

    def go_back(
        self,
        order: int,
        pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
        more: list[torch.Tensor],
    ) -> PartGraph:
        """The graph of a backward pass from outputs with their cotangents."""
        *parts, token = torch.autograd.grad(
            [*(output for output, _ in pairs), self.token],
            [*self.leaves, self.start],
            [*(grad for _, grad in pairs), self.token.clone()],
            retain_graph=True,  # passes of other orders go through it, too
            create_graph=torch.is_grad_enabled(),
            allow_unused=True,
        )
        return PartGraph(self.made, order, [*self.leaves, *more], parts, self.start, token)

    def sums(self) -> Gradients:
        """The parts of all ranks added up: for every rank, or where no more gradients are asked for
        on those that use a captured tensor.
        """
        run = _run_of(self.made)
        size = run.transport.size
        users = users_of(self.made, size, is_everyone=torch.is_grad_enabled())
        users += [(1 << size) - 1] * (len(self.parts) - len(users))
        with torch.no_grad():
            tensors = self.leaves[: len(self.parts)]
            found = sum_gradients(run.transport, tensors, self.parts, users)
            run.transport.finish()
        return [None if total is None else total.detach() for total in found]


def graph_of_gradients(
    made: DifferentiableCall, grads: Sequence[torch.Tensor | None]
) -> Sequence[torch.Tensor | None]:
    """Gradients of a call's tensors that can be differentiated again."""
    given = [grad for grad in grads if grad is not None]
    inputs = [*made.tensors, *given]
    found = _PartNode.apply(_Step(made, None, grads), *inputs)  # type: ignore[no-untyped-call]
    gradients: Sequence[torch.Tensor | None] = found
    return gradients


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A backward pass of some order: through a graph of parts, or through the call itself."""

    made: DifferentiableCall
    before: PartGraph | None
    grads: Sequence[torch.Tensor | None]

    def take(self) -> tuple[PartGraph, Gradients]:
        """Go back together with all other ranks."""
        run = _run_of(self.made)
        order = 1 if self.before is None else self.before.order + 1
        marks = bytes([order, *(grad is not None for grad in self.grads)])
        transport = run.transport
        users = users_of(self.made, transport.size, is_everyone=torch.is_grad_enabled())
        with without_modes(), transport.lock:
            agree_on_backward(run, marks, shared_tensors(self.made, users))
            with transport.guarded(f"the backward pass of call {run.call}"):
                transport.digest = RollingDigest(run.digest + b"replay" + marks).value
                graph = self._graph(run)
                return graph, graph.sums()

    def _graph(self, run: PlacedTapedRun) -> PartGraph:
        if self.before is not None:
            return self.before.differentiate(self.grads)
        try:
            return _replayed(self.made, run, self.grads)
        finally:
            rest(run)


class _PartNode(torch.autograd.Function):
    """The autograd node of a graph of parts."""

    @staticmethod
    def forward(ctx: Any, step: _Step, *inputs: torch.Tensor) -> Any:
        """Make the graph; values are the same on every rank."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        with torch.enable_grad():
            ctx.graph, found = step.take()
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        """The gradients of what the node was given."""
        step, inputs = _Step(ctx.graph.made, ctx.graph, grads), ctx.saved_tensors
        if not torch.is_grad_enabled():
            return None, *step.take()[1]
        given = [grad for grad in grads if grad is not None]
        return None, *_PartNode.apply(step, *inputs, *given)  # type: ignore[no-untyped-call]


def _replayed(
    made: DifferentiableCall, run: PlacedTapedRun, grads: Sequence[torch.Tensor | None]
) -> PartGraph:
    """The gradients of a call: its tape is run again, with all ranks."""
    ends = CallEnds(made)
    ends.tensors = [_leaf(tensor) for tensor in made.tensors]
    given = [None if grad is None else _leaf(grad) for grad in grads]
    located = made.cotangents(given)
    wanted = [item for item in located if len(item[1]) and run.is_mine(item[0])]
    start = torch.zeros((), requires_grad=True)
    replay = PlacedReplay(ends, wanted, run, start)
    replay.use_pages(is_last=not keeps_graph())
    replay.carry_out()
    outputs = [replay.pieces.take(n, slots).reshape(grad.shape) for n, slots, grad in wanted]
    grounds = PartGraph(made, 0, ends.tensors, [], start, replay.token)
    pairs = [
        (output, grad)
        for output, (_, _, grad) in zip(outputs, wanted, strict=True)
        if output.requires_grad
    ]
    return grounds.go_back(1, pairs, [grad for grad in given if grad is not None])


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_()


def _run_of(made: DifferentiableCall) -> PlacedTapedRun:
    assert isinstance(made.run, PlacedTapedRun)
    return made.run
