"""Where values live: the arena, sequence table, array table or box table of each slot wire.

A place follows from the type of a wire alone, and is made when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.ir.graph import Home, Wire
from penstock.ir.types import ArrayType, TensorType
from penstock.plan.arrays import ArrayTable
from penstock.plan.boxes import BoxTable
from penstock.plan.schedule import Kind
from penstock.plan.slots import SequenceTable, SlotSpace

if TYPE_CHECKING:
    from penstock.plan.linked import Linked

#: Where the values of a slot wire are counted.
Place = SlotSpace | SequenceTable | ArrayTable | BoxTable


class Places:
    """The places of one run."""

    def __init__(self) -> None:
        #: The arenas, by number.
        self.spaces: list[SlotSpace] = []
        self.array_tables: dict[int, ArrayTable] = {}
        self.box_tables: dict[tuple[str, int, str], BoxTable] = {}
        self._space_of: dict[Kind, SlotSpace] = {}
        self._of_wires: dict[Wire, Place] = {}

    def place(self, wire: Wire) -> Place:
        """Where the values of a slot wire live."""
        if wire not in self._of_wires:
            self._of_wires[wire] = self._of_type(wire.type)
        return self._of_wires[wire]

    def _space(self, kind: Kind) -> SlotSpace:
        """The arena for values of a kind."""
        if kind not in self._space_of:
            self._space_of[kind] = made = SlotSpace(len(self.spaces), kind)
            self.spaces.append(made)
        return self._space_of[kind]

    def _of_type(self, kind: TensorType | ArrayType) -> Place:
        if isinstance(kind, ArrayType):
            inner = self._of_type(kind.element or TensorType("unknown"))
            assert not isinstance(inner, ArrayTable)
            return self.array_tables.setdefault(id(inner), ArrayTable(inner))
        if kind.is_sequence:
            return self._space(_kind(kind.element)).sequences
        if kind.is_dynamic:
            return self._boxes(kind)
        return self._space(_kind(kind))

    def _boxes(self, kind: TensorType) -> BoxTable:
        def space(shape: tuple[int, ...]) -> SlotSpace:
            return self._space(Kind(kind.dtype, shape, kind.device))

        key = (kind.dtype, len(kind.shape), kind.device)
        return self.box_tables.setdefault(key, BoxTable(space, self.spaces))


def placed_wires(linked: Linked) -> list[Wire]:
    """One slot wire for each kind of value whose arena is known before a run, in a fixed order:
    arenas are then numbered alike, whatever is launched first.
    """
    contexts = linked.contexts
    wires = [wire for context in contexts for wire in context.slot_wires]
    wires += [item.slot for item in linked.graph.inputs if item.slot is not None]
    for node in (node for context in contexts for node in context.nodes):
        wires += [w for w in (*node.node.inputs, *node.node.outputs) if w.home is Home.SLOT]
    chosen: dict[Kind, Wire] = {}
    for wire in wires:
        kind = wire.type.element if _is_sequence(wire) else wire.type
        if isinstance(kind, TensorType) and not kind.is_dynamic:
            chosen.setdefault(_kind(kind), wire)
    return list(chosen.values())


def _is_sequence(wire: Wire) -> bool:
    return isinstance(wire.type, TensorType) and wire.type.is_sequence


def _kind(kind: TensorType) -> Kind:
    return Kind(kind.dtype, kind.shape, kind.device)  # type: ignore[arg-type]


def by_place(places: list[Place]) -> list[tuple[Place, list[int] | None]]:
    """The columns of each place; None for all columns."""
    grouped: dict[int, list[int]] = {}
    for column, place in enumerate(places):
        grouped.setdefault(id(place), []).append(column)
    if len(grouped) == 1:
        return [(places[0], None)]
    return [(places[columns[0]], columns) for columns in grouped.values()]
