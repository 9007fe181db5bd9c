"""Where a graph's rows keep things in the kernel: frames of contexts, arenas, numbers of nodes.

A row is the start of its frame. A frame is a head, then host values, slots, children and the
counters of nodes that wait for several arrivals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.ir.graph import Block, Home, Wire
from penstock.ir.types import ArrayType, TensorType
from penstock.plan.linked import Access, Linked, LinkedContext, LinkedNode
from penstock.plan.native import opcodes as op
from penstock.plan.native.program import NativeProgram, NotNative, kind_of
from penstock.plan.schedule import Integers, Kind


class Layout:
    """Offsets and numbers, known before any code is written."""

    def __init__(self, linked: Linked) -> None:
        self.linked = linked
        self._check()
        self.kinds: dict[Kind, int] = {}
        for wire in linked.placed:
            self.place(wire)
        #: The nodes that are queued, and their numbers; -1 - context is a context's start.
        starts = [c.start for c in linked.contexts if c.start is not None]
        nodes = [n for c in linked.contexts for n in c.nodes if not n.is_inline]
        self.queued = [*starts, *(node for node in nodes if node.kind != "call")]
        self.number = {node: number for number, node in enumerate(self.queued)}

    def _check(self) -> None:
        """Refuse what the kernel cannot do."""
        if self.linked.graph.has_random:
            raise NotNative("random keys")
        if any(isinstance(w.type, ArrayType) for w in self.linked.contexts[0].context.outputs):
            raise NotNative("arrays as outputs")
        for linked in self.linked.contexts:
            if linked.context.kind == "each":
                raise NotNative("a for-each")
            if linked.context.parallel_iterations is not None:
                raise NotNative("a bound on parallel iterations")
            for node in linked.nodes:
                if node.kind in ("read", "fork", "key"):
                    raise NotNative(f"a node of kind {node.kind}")

    def place(self, wire: Wire) -> tuple[int, bool]:
        """The arena of a slot wire, and whether its values are sequences; of arrays that of their
        elements.
        """
        if isinstance(wire.type, ArrayType) and kind_of(wire) not in self.kinds:
            raise NotNative("arrays of what nobody makes")
        arena = self.kinds.setdefault(kind_of(wire), len(self.kinds))
        return arena, isinstance(wire.type, TensorType) and wire.type.is_sequence

    def counted(self, wire: Wire) -> int:
        """Where references to the values of a wire are counted."""
        if wire.home is not Home.SLOT:
            return op.NOT_COUNTED
        arena, is_sequence = self.place(wire)
        return op.IN_SEQUENCES if is_sequence or isinstance(wire.type, ArrayType) else arena

    # ---- frames ----------------------------------------------------------------------------------

    def host(self, context: int, column: int) -> int:
        """The offset of a host value."""
        wire = self.linked.contexts[context].host_wires[column]
        assert isinstance(wire.type, TensorType)
        if wire.type.dtype not in ("int64", "bool"):
            raise NotNative("floats on the host")
        return op.HEAD + column

    def slot(self, context: int, column: int) -> int:
        """The offset of a slot."""
        return op.HEAD + len(self.linked.contexts[context].host_wires) + column

    def child(self, context: int, column: int) -> int:
        """The offset of a child; -1 is the next iteration of a loop."""
        linked = self.linked.contexts[context]
        first = self.slot(context, len(linked.slot_wires))
        return first + (column if column >= 0 else linked.children)

    def pending(self, context: int, counter: int) -> int:
        """The offset of a node's counter."""
        linked = self.linked.contexts[context]
        return self.child(context, linked.children) + _has_next(linked) + counter

    def column(self, context: int, access: Access) -> int:
        """The offset at which a node of a context finds a value that rows keep."""
        context = access.above[-1] if access.above else context
        find = self.host if access.is_host else self.slot
        return find(context, access.column)

    def program(
        self,
        code: Sequence[Sequence[int]],
        lists: Sequence[int],
        segments: Sequence[int],
        groups: dict[int, int],
        constants: Sequence[int],
        registers: int,
    ) -> NativeProgram:
        """All tables."""
        linked = self.linked
        starts = np.full(1 + max([0, *groups]), -1, np.int64)
        starts[list(groups)] = list(groups.values())
        contexts, waits = self._contexts()
        outputs = linked.contexts[0].context.outputs
        return NativeProgram(
            code=np.array(code, np.int64).reshape(-1),
            lists=np.array([*lists, 0], np.int64),
            nodes=self._nodes(segments),
            contexts=contexts,
            groups=starts,
            waits=waits,
            constants=np.array([*constants, 0], np.int64),
            registers=registers,
            arenas=tuple(self.kinds),
            start=len(self.queued),
            blocks=tuple(linked.blocks),
            queued=tuple(self.queued),
            inputs=tuple(
                None if item.slot is None else self.place(item.slot) for item in linked.graph.inputs
            ),
            outputs=tuple((w, self.place(w)[0] if w.home is Home.SLOT else -1) for w in outputs),
        )

    def _nodes(self, segments: Sequence[int]) -> Integers:
        table = np.zeros((len(segments), op.NODE_COLUMNS), np.int64)
        table[-1, op.NODE_SEGMENT] = segments[-1]
        for row, node, segment in zip(table, self.queued, segments):
            row[op.NODE_SEGMENT], row[op.NODE_CONTEXT] = segment, node.context
            row[op.NODE_RANK], row[op.NODE_NUMBER] = node.rank, node.number
            row[op.NODE_ENTERS] = node.kind == "enter"
            if node.is_data:
                row[op.NODE_QUEUE] = op.DATA_QUEUE
            else:
                row[op.NODE_QUEUE] = op.EXPANDING_QUEUE if node.is_expanding else op.CONTROL_QUEUE
        return table

    def _contexts(self) -> tuple[Integers, Integers]:
        table = np.zeros((len(self.linked.contexts), op.CONTEXT_COLUMNS), np.int64)
        waits: list[int] = []
        for row, linked in zip(table, self.linked.contexts, strict=True):
            index = linked.context.index
            row[op.FIRST_UNDONE] = linked.arms[0].todo + linked.loose + (linked.start is not None)
            row[op.SLOT_START] = self.slot(index, 0)
            row[op.SLOT_COUNT] = len(linked.slot_wires)
            row[op.PENDING_START] = self.pending(index, 0)
            row[op.PENDING_COUNT] = len(linked.waits)
            row[op.FRAME_SIZE] = self.pending(index, len(linked.waits))
            row[op.WAITS_START] = len(waits)
            row[op.IS_LOOP] = linked.context.kind == "loop"
            waits.extend(linked.waits)
        places = [self.counted(w) for c in self.linked.contexts for w in c.slot_wires]
        return self._with_places(table, places), np.array([*waits, 0], np.int64)

    def _with_places(self, table: Integers, places: list[int]) -> Integers:
        """The table, with the place of each slot column of a context behind it."""
        wide = np.zeros((len(table), op.CONTEXT_COLUMNS + max(1, len(places))), np.int64)
        wide[:, : op.CONTEXT_COLUMNS] = table
        first = 0
        for row in wide:
            count = row[op.SLOT_COUNT]
            row[op.CONTEXT_COLUMNS : op.CONTEXT_COLUMNS + count] = places[first : first + count]
            first += count
        return wide


def _has_next(linked: LinkedContext) -> bool:
    return linked.context.kind == "loop"


def launch_specification(layout: Layout, node: LinkedNode) -> list[int] | None:
    """What a launch of a block reads and writes: block, flatness, operands, targets; None for a
    block that mixes along a dynamic dimension or is told sizes.
    """
    block = node.node.operation
    assert isinstance(block, Block)
    operands, targets = _operands(layout, node), [layout.place(w) for w in node.node.outputs]
    is_sequential = any(kind == op.SEQUENCE_OPERAND for kind, _ in operands)
    if block.sizes or {is_sequential, *(is_long for _, is_long in targets)} != {block.is_flat}:
        return None
    return _specification(node, operands, targets)


def padded_specification(layout: Layout, node: LinkedNode) -> list[int] | None:
    """The same for a block that mixes along the dimension of one sequence, with what will be known
    of its padded form before it; None for other blocks.
    """
    block = node.node.operation
    assert isinstance(block, Block)
    operands, targets = _operands(layout, node), [layout.place(w) for w in node.node.outputs]
    kinds = [kind for kind, _ in operands]
    is_apt = kinds.count(op.SEQUENCE_OPERAND) == 1 and not any(is_long for _, is_long in targets)
    if block.sizes or not is_apt:
        return None
    unknown = [-1, 0, kinds.index(op.SEQUENCE_OPERAND)]
    return [*unknown, *_specification(node, operands, targets)]


def _specification(
    node: LinkedNode, operands: list[tuple[int, int]], targets: list[tuple[int, bool]]
) -> list[int]:
    block = node.node.operation
    assert isinstance(block, Block)
    return [
        node.block,
        int(block.is_flat),
        len(operands),
        len(targets),
        *(word for operand in operands for word in operand),
        *(arena for arena, _ in targets),
    ]


def _operands(layout: Layout, node: LinkedNode) -> list[tuple[int, int]]:
    return [_operand(layout, w) for w in node.node.inputs if w.home is not Home.UNIFORM]


def _operand(layout: Layout, wire: Wire) -> tuple[int, int]:
    if wire.home is Home.HOST:
        return op.HOST_OPERAND, -1
    arena, is_sequence = layout.place(wire)
    return (op.SEQUENCE_OPERAND if is_sequence else op.SLOT_OPERAND), arena
