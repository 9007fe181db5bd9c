"""One call that asks for gradients: its tensors, where they come from, and where its values are.

A call is made before the forward run, which leaves its tape here; backward passes only read it. It
holds no values of its own: pages do, and inputs and captures belong to the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from penstock.autodiff.versions import versions_of
from penstock.ir.graph import Context, Wire
from penstock.passes.differentiable import find_differentiable
from penstock.plan.schedule import Integers
from penstock.run.engine import Columns
from penstock.run.executable import Executable
from penstock.run.faults import Numbers
from penstock.run.inputs import Pieces
from penstock.run.recording import CallRecorder
from penstock.run.seeds import Seed

if TYPE_CHECKING:
    from penstock.autodiff.taped_run import TapedRun


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor comes from: a column (and one instance of it), or a capture."""

    column: int | None = None
    instance: int | None = None
    capture: int | None = None


@dataclass(slots=True, eq=False)
class DifferentiableCall:
    """One call that asks for gradients: what goes in, and after the forward run what backward
    needs.
    """

    executable: Executable
    columns: Columns
    captures: Sequence[torch.Tensor]
    count: int
    numbers: Numbers
    seed: Seed | None
    #: The tensors that ask for gradients, and where each comes from.
    tensors: list[torch.Tensor]
    places: list[Place]
    recorder: CallRecorder | None = None
    #: None until the forward run.
    taped: TapedRun | None = None
    #: Whether outputs of one shape come as one tensor of all rows.
    is_joined: bool = False
    #: Outputs without gradients, by position: their rows.
    plain: dict[int, list[torch.Tensor] | torch.Tensor] = field(default_factory=dict)
    #: The output and the instance of each tensor that the call gives; None for all instances.
    flowing: list[tuple[int, int | None]] = field(default_factory=list)
    #: The instances that a backward pass is about, where those of others get zeros; None: all.
    reached: Integers | None = None
    #: For each column the versions of its tensors before the forward run.
    versions: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.versions = list(map(versions_of, self.columns))

    @property
    def run(self) -> TapedRun:
        """The forward run."""
        assert self.taped is not None
        return self.taped

    @property
    def entry(self) -> Context:
        """The context whose outputs are those of the call."""
        context: Context = self.executable.linked.contexts[0].context
        return context

    @property
    def wires(self) -> frozenset[Wire]:
        """The wires through which gradients flow."""
        arguments = frozenset(p.column for p in self.places if p.column is not None)
        captured = frozenset(p.capture for p in self.places if p.capture is not None)
        known: dict[object, Any] = self.executable.differentiable
        if (arguments, captured) not in known:
            graph = self.executable.graph
            known[arguments, captured] = find_differentiable(graph, arguments, captured)
        wires: frozenset[Wire] = known[arguments, captured]
        return wires

    def cotangents(
        self, grads: Sequence[torch.Tensor | None]
    ) -> list[tuple[int, Integers, torch.Tensor]]:
        """The arena and the slots of each result that has a cotangent, with the cotangent."""
        return [
            item
            for (output, instance), grad in zip(self.flowing, grads, strict=True)
            if grad is not None
            for item in self._located(output, instance, grad)
        ]

    def _located(
        self, output: int, instance: int | None, grad: torch.Tensor
    ) -> Iterator[tuple[int, Integers, torch.Tensor]]:
        where = self.run.outcome.result(output)
        if self.reached is None:
            yield *where.of(chosen(instance)), grad
        elif instance is None:
            rows = torch.from_numpy(self.reached).to(grad.device)
            yield *where.of(self.reached), grad.index_select(0, rows)
        elif instance in self.reached:
            yield *where.of(chosen(instance)), grad


def call_behind(result: torch.Tensor) -> DifferentiableCall | None:
    """The call that has made a tensor, or the rows that were stacked to it."""
    node: Any = result.grad_fn
    if node is not None and not hasattr(node, "made") and node.next_functions:
        node = node.next_functions[0][0]
    made = getattr(node, "made", None)
    return made if isinstance(made, DifferentiableCall) else None


def chosen(instance: int | None) -> slice:
    """One instance, or all."""
    return slice(None) if instance is None else slice(instance, instance + 1)


def find_tensors(
    columns: Columns, captures: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[Place]]:
    """The tensors that ask for gradients, each with its place."""
    tensors: list[torch.Tensor] = []
    places: list[Place] = []

    def add(tensor: torch.Tensor, place: Place) -> None:
        if tensor.requires_grad:
            tensors.append(tensor)
            places.append(place)

    for number, column in enumerate(columns):
        if isinstance(column, torch.Tensor):
            add(column, Place(column=number))
            continue
        if isinstance(column, Pieces):
            continue
        if column and not (column[0].is_floating_point() or column[0].is_complex()):
            continue  # all of a column have one type
        for instance, tensor in enumerate(column):
            add(tensor, Place(column=number, instance=instance))
    for number, tensor in enumerate(captures):
        add(tensor, Place(capture=number))
    return tensors, places
