"""What one run of the planner knows: rows of every context, places of values, queues, instructions.

All of it belongs to one run and is changed by it; the linked graph never is. Nothing here decides
what happens next: nodes are chosen in `ready_nodes`, rows begin and end in `row_lives`, and values
travel in `machine`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from penstock.ir.graph import Home
from penstock.plan.arrays import ArrayTable
from penstock.plan.boxes import BoxTable
from penstock.plan.bundles import Bundles
from penstock.plan.gates import Gates
from penstock.plan.host_code import Tables
from penstock.plan.launches import LaunchPlan
from penstock.plan.limits import Limits
from penstock.plan.linked import Access, Group, Linked, LinkedContext, LinkedNode
from penstock.plan.padding import Padding
from penstock.plan.places import Places, by_place
from penstock.plan.rows import Rows
from penstock.plan.schedule import Array, Instruction, Integers, Launch


class ShapeOracle(Protocol):
    """Answers, for a block that mixes along dynamic dimensions, how large its results are, and how
    rows of different sizes can run together.
    """

    def shapes(self, block: int, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """The shape of each result for one instance, for operands whose dynamic dimensions have
        these sizes.
        """

    def padding(self, block: int, sizes: Mapping[int, Integers]) -> Padding | None:
        """The block's padded form, if it has one, for operands of these sizes."""


class MachineState:
    """All that one run over one batch of instances has."""

    def __init__(
        self,
        linked: Linked,
        limits: Limits,
        shapes: ShapeOracle,
        count: int,
        seed: int = 0,
        numbers: Sequence[int] | None = None,
    ) -> None:
        self.linked = linked
        self.count = count
        self.limits = limits
        self.shapes = shapes
        self.seed = seed
        #: For each instance its number in the map, for random keys.
        self.numbers = range(count) if numbers is None else numbers
        #: Whether any random key has been made.
        self.has_drawn = False
        places = Places()
        self.place = places.place
        self.spaces = places.spaces
        self.array_tables, self.box_tables = places.array_tables, places.box_tables
        for wire in linked.placed:
            self.place(wire)
        #: Padded copies of sequences.
        self.bundles = Bundles(self.spaces)
        self.rows = [self._new_rows(context) for context in linked.contexts]
        self.slot_places = [
            [self.place(wire) for wire in context.slot_wires] for context in linked.contexts
        ]
        self.slot_groups = [by_place(places) for places in self.slot_places]
        self.tables = Tables()
        #: Host values (or table numbers) and slots of each graph input, by instance.
        self.input_host: list[Array | None] = [None] * len(linked.graph.inputs)
        self.input_slots: list[Integers | None] = [None] * len(linked.graph.inputs)
        entry = linked.contexts[0].context
        self.result_slots: list[Array | None] = [None] * len(entry.outputs)
        self.queues: dict[LinkedNode, list[Integers]] = {}
        self.control: deque[LinkedNode] = deque()
        self.expanding: deque[LinkedNode] = deque()
        self.data: dict[LinkedNode, None] = {}
        #: Values on their way to rows above; a list, so that long chains of returns do not nest.
        self.moves: deque[tuple[Group, Integers, Sequence[Array]]] = deque()
        #: Rows that have got an input that they were made to wait for, by context.
        self.arrived: list[tuple[int, Integers]] = []
        #: Counts that keep fresh values alive until they have arrived.
        self.held: list[Callable[[], None]] = []
        self.out: list[Instruction] = []
        #: The instances of the rows of each launch that is planned and not yet run, for errors.
        self.launched: deque[Integers] = deque()
        #: Rows of loops whose next iteration waits for an older one to end, by context.
        self.waiting: dict[int, list[Integers]] = {
            context.context.index: []
            for context in linked.contexts
            if context.context.parallel_iterations is not None
        }
        self.launch_plans: dict[LinkedNode, LaunchPlan] = {}
        #: Says when iterations may begin, where several devices carry out the plan.
        self.gates: Gates | None = None
        #: What undoes the references of the call's inputs.
        self.pins: list[Callable[[], None]] = []
        self.live_rows = 0
        self.most_live_rows = 0
        self.firings = 0

    def _new_rows(self, context: LinkedContext) -> Rows:
        waits = np.array(context.waits, np.int64)
        children = context.children + (context.context.kind == "loop")  # and the next iteration
        first = max(256, 8 * self.count)
        return Rows(
            tuple(context.host_dtypes), len(context.slot_wires), children, waits, first=first
        )

    def fetch(
        self, node: LinkedNode, position: int, rows: Integers, arrays: Sequence[Array] | None
    ) -> Array:
        """The values of one input of a node, for rows of its context."""
        access = node.access[position]
        if arrays is not None and access.field is not None:
            return arrays[access.field]
        return self.look_up(node.context, access, rows)

    def put_launch(self, node: LinkedNode, rows: Integers, launch: Launch) -> None:
        """One more instruction, with the instances of its rows."""
        self.out.append(launch)
        self.launched.append(self.rows[node.context].instance[rows])

    def look_up(self, context: int, access: Access, rows: Integers) -> Array:
        """Values that rows of a context keep, or that rows above them or instances do."""
        home = self.rows[context]
        if access.input is not None:
            source = (self.input_host if access.is_host else self.input_slots)[access.input]
            assert source is not None
            return source[home.instance[rows]]
        for above in access.above:
            rows = home.parent[rows]
            home = self.rows[above]
        column = access.column
        return home.host[column][rows] if access.is_host else home.slots[column][rows]

    def audit(self) -> dict[str, int]:
        """What is still referred to once the call gives up its inputs and outputs; all zero, or
        there is a leak.
        """
        for release in self.pins:
            release()
        for wire, values in zip(self.linked.contexts[0].context.outputs, self.result_slots):
            if wire.home is Home.SLOT and values is not None:
                self.place(wire).add(values, -1)
        tables: list[ArrayTable | BoxTable] = [
            *self.array_tables.values(),
            *self.box_tables.values(),
        ]
        return {
            "rows": self.live_rows,
            "tables": sum(table.live() for table in tables),
            "slots": sum(space.live() for space in self.spaces),
        }
