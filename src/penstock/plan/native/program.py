"""An assembled graph: flat tables of integers that the kernel follows, and what they refer to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.ir.graph import Node, Wire
from penstock.ir.types import ArrayType, TensorType
from penstock.plan.schedule import Integers, Kind

if TYPE_CHECKING:
    from penstock.plan.linked import LinkedNode


class NotNative(Exception):
    """A graph holds something that only the plain machine plans; the message says what."""


@dataclass(frozen=True, slots=True, eq=False)
class NativeProgram:
    """A linked graph as tables."""

    #: Instructions, `WIDTH` integers each.
    code: Integers
    #: Integers that instructions refer to: fields, registers, specifications of launches.
    lists: Integers
    #: A row per queued node, and per context with the places of its slots.
    nodes: Integers
    contexts: Integers
    #: Where the code begins of each group that values are moved to.
    groups: Integers
    #: What each counting node waits for, context by context.
    waits: Integers
    #: The values of the first registers.
    constants: Integers
    registers: int
    arenas: tuple[Kind, ...]
    #: The number of the node that begins with the rows of all instances; nobody else queues it.
    start: int
    blocks: tuple[Node, ...]
    #: The nodes that are queued, by number.
    queued: tuple[LinkedNode, ...]
    #: For each graph input that has slots its arena, and whether it is of sequences.
    inputs: tuple[tuple[int, bool] | None, ...]
    #: The entry's outputs, each with its arena; -1 on the host.
    outputs: tuple[tuple[Wire, int], ...]

    def arena_of(self, wire: Wire) -> int:
        """The number of the arena that holds a slot wire's values, or its elements."""
        return self.arenas.index(kind_of(wire))


def kind_of(wire: Wire) -> Kind:
    """What an arena holds for a slot wire: its values, or the elements of sequences or arrays."""
    kind = wire.type
    is_nested = isinstance(kind, ArrayType) or kind.is_sequence
    element = kind.element if is_nested else kind
    if not isinstance(element, TensorType) or element.is_dynamic:
        raise NotNative("values with inner dynamic dimensions")
    return Kind(element.dtype, element.shape, element.device)  # type: ignore[arg-type]
