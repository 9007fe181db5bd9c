"""Contexts under construction: what lowering adds nodes to, and what becomes a graph in the end.

Torch calls and host operations are still one node each here. A draft only grows; it is dropped once
the graph is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from penstock.ir.graph import Context, Node, Operation, Wire
from penstock.ir.program import Node as ProgramNode
from penstock.ir.program import Source


@dataclass(frozen=True, slots=True)
class TorchStep:
    """One torch call on data, before blocks are formed."""

    node: ProgramNode


#: What a node of a draft does.
DraftOperation: TypeAlias = Operation | TorchStep


class DraftNode(NamedTuple):
    """A node before it has its place in a graph."""

    operation: DraftOperation
    inputs: tuple[Wire, ...]
    outputs: tuple[Wire, ...]
    arm: int
    source: Source | None


@dataclass(slots=True, eq=False)
class Draft:
    """A context under construction."""

    index: int
    kind: str
    name: str
    parent: int | None
    source: Source | None = None
    #: The sites of the scopes from the parent's own to this context's, for random keys.
    key_path: tuple[int, ...] = ()
    #: The arm around each arm; None for arm 0.
    arms: list[int | None] = field(default_factory=lambda: [None])
    #: The sites of the scopes from the context's own to each arm's, for random keys.
    paths: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    nodes: list[DraftNode] = field(default_factory=list)
    inputs: list[Wire] = field(default_factory=list)
    outputs: list[Wire] = field(default_factory=list)
    exits: list[Wire] = field(default_factory=list)
    maximum_iterations: int | None = None
    parallel_iterations: int | None = None
    window: int = 1

    @property
    def trunk(self) -> Arm:
        """The arm that every row runs."""
        return Arm(self, 0)


@dataclass(frozen=True, slots=True)
class Arm:
    """An arm of a draft: the place where nodes are added."""

    draft: Draft
    number: int

    @property
    def path(self) -> tuple[int, ...]:
        """The sites of the scopes from the context's own to this arm's."""
        return self.draft.paths[self.number]

    def open(self, path: tuple[int, ...]) -> Arm:
        """A new arm inside this one."""
        self.draft.arms.append(self.number)
        self.draft.paths.append(self.path + path)
        return Arm(self.draft, len(self.draft.arms) - 1)

    def add(
        self,
        operation: DraftOperation,
        inputs: Sequence[Wire],
        outputs: Sequence[Wire],
        source: Source | None = None,
    ) -> None:
        """Append a node."""
        node = DraftNode(operation, tuple(inputs), tuple(outputs), self.number, source)
        self.draft.nodes.append(node)

    def makes(self, wire: Wire) -> bool:
        """Whether a node of this very arm makes the wire."""
        is_here = (wire.context, wire.arm) == (self.draft.index, self.number)
        return is_here and wire.input is None and wire not in self.draft.inputs


def finish(drafts: Sequence[Draft], nodes: Mapping[int, Sequence[Node]]) -> tuple[Context, ...]:
    """The contexts of the drafts, with these nodes."""
    return tuple(
        Context(
            draft.index,
            draft.kind,
            draft.name,
            draft.parent,
            tuple(draft.arms),
            tuple(nodes[draft.index]),
            tuple(draft.inputs),
            tuple(draft.outputs),
            tuple(draft.exits),
            draft.maximum_iterations,
            draft.parallel_iterations,
            draft.source,
            draft.key_path,
            draft.window,
        )
        for draft in drafts
    )
