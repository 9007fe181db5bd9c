"""Turns the records of one flush into launches and copies.

As long as records are ready, the policy names a group and all its ready records run in one launch.
Copies with the same arenas run together, whatever their kind. Results get their slots before those
of the operands are given up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.plan.fresh_values import Fresh, find_steps, number_cells
from penstock.plan.policies import POLICIES, DepthPolicy, Policy
from penstock.plan.record_graph import RecordGraph, Steps, build_graph, find_depths, settle
from penstock.plan.schedule import (
    Copy,
    Hosted,
    Instruction,
    Integers,
    Launch,
    Operand,
    Span,
    Target,
    concatenate,
    pick,
    slots_of,
)
from penstock.plan.slot_uses import SlotUses, count_uses, expand
from penstock.plan.step_kinds import KeyOf, Row, StepKind
from penstock.plan.value_table import Form, KindTable, ValueTable

if TYPE_CHECKING:
    from penstock.plan.recorded import Recorded

#: Stands where random keys belong.
NO_KEYS = Hosted(np.empty(0, np.int64))

#: Copies of the same depth (where it counts), source arena and target arena run together.
Family = tuple[int, int, int]


class KeyNeed(NamedTuple):
    """An operand that is random keys, which are in no plan."""

    instruction: int
    operand: int
    #: The number of the launch among the launches.
    launch: int
    draw: int


class Plan(NamedTuple):
    """The instructions of a flush, without random keys."""

    instructions: list[Instruction]
    inputs: list[Span]
    #: The records of each launch.
    records: list[Integers]
    keys: list[KeyNeed]


class Forms(NamedTuple):
    """How what a kind takes and makes is stored."""

    operands: list[Form]
    results: list[Form]


class Firing:
    """Plans the steps of one flush."""

    def __init__(self, steps: Steps, values: ValueTable, kinds: KindTable, policy: str) -> None:
        self.values = values
        self.kinds = kinds.kinds
        self.plan = Plan([], [], [], [])
        self.arenas = [SlotUses(space) for space in values.spaces]
        #: Ready nodes by group, in pieces, and how many they are.
        self.ready: dict[int, list[Integers]] = {}
        self.widths: dict[int, int] = {}
        graph, depths = build_graph(steps, values), None
        #: By kind.
        self.forms = {
            kind: Forms(_operand_forms(graph, values, group), kinds.results(kind))
            for group, kind in enumerate(graph.kinds)
        }
        if POLICIES[policy] is DepthPolicy:
            depths = np.empty(len(graph.order), np.int64)
            depths[graph.order] = find_depths(graph)
            graph = build_graph(steps, values, depths)
        self.graph: RecordGraph = graph
        self.policy: Policy = POLICIES[policy](graph)
        #: By group; None for blocks.
        self.families = self._families(depths)
        self.pending = graph.pending.copy()
        #: By node: its record and the first value that it makes.
        self.records = steps.records[graph.order]
        self.results = steps.results[graph.order]
        #: By value that a node takes: the value that it is a part of, and where it begins there.
        self.roots = values.root[graph.values]
        offsets = values.offset[graph.values]
        self.offsets = offsets if offsets.any() else None

    def _families(self, depths: Integers | None) -> list[Family | None]:
        found: list[Family | None] = []
        for group, kind in enumerate(self.graph.kinds):
            if not self.kinds[kind].is_copy:
                found.append(None)
                continue
            sources = {form.arena for form in self.forms[kind].operands}
            assert len(sources) == 1, "a copy takes values of one arena"
            step = self.graph.order[self.graph.starts[group]]
            depth = 0 if depths is None else int(depths[step])
            found.append((depth, sources.pop(), self.forms[kind].results[0].arena))
        return found

    def run(self, uses: Integers) -> Plan:
        """Plan all steps; `uses` of each slot that they fill, one node after the other."""
        self.uses = uses
        self._enqueue(np.flatnonzero(self.pending == 0))
        while self.widths:
            group = self.policy.choose(self.widths)
            family = self.families[group]
            if family is None:
                self._launch(group, self._take(group))
            else:
                self._copy([other for other in self.widths if self.families[other] == family])
        assert not self.pending.any(), "records wait for values that nobody makes"
        for arena in self.arenas:
            arena.apply()
        return self.plan

    # ---- what is ready ---------------------------------------------------------------------------

    def _enqueue(self, nodes: Integers) -> None:
        if not len(nodes):
            return
        groups = self.graph.group[nodes]
        if groups[0] == groups[-1]:
            self._add(int(groups[0]), nodes)
            return
        cuts = np.flatnonzero(groups[1:] != groups[:-1]) + 1
        first = 0
        for end in [*cuts.tolist(), len(nodes)]:
            self._add(int(groups[first]), nodes[first:end])
            first = end

    def _add(self, group: int, nodes: Integers) -> None:
        self.ready.setdefault(group, []).append(nodes)
        self.widths[group] = self.widths.get(group, 0) + len(nodes)

    def _take(self, group: int) -> Integers:
        """All ready nodes of a group, in recording order."""
        del self.widths[group]
        pieces = self.ready.pop(group)
        return pieces[0] if len(pieces) == 1 else np.sort(np.concatenate(pieces))

    # ---- instructions ----------------------------------------------------------------------------

    def _launch(self, group: int, nodes: Integers) -> None:
        kind = self.graph.kinds[group]
        step, forms = self.kinds[kind], self.forms[kind]
        places = self.graph.places(group, nodes)
        operands, reads = self._operands(step, forms, self._slots(group, places))
        targets = [self._allocate(form, len(nodes)) for form in forms.results]
        results = self.results[nodes]
        for number, (form, target) in enumerate(zip(forms.results, targets)):
            self.values.slot[results + number] = slots_of(target)[:: form.slots]
        self._announce(forms.results)
        self._emit(Launch(step.block, len(nodes), operands, tuple(targets)), step, nodes)
        for form, slots in zip(forms.operands, reads):
            self.arenas[form.arena].reads.append(slots)
        self._count(group, places, targets)
        self._enqueue(settle(self.graph, self.pending, nodes))

    def _slots(self, group: int, places: slice | Integers) -> Integers:
        """The first slot of each value that nodes take: one row for each node."""
        graph = self.graph
        slots = self.values.slot[graph.rows(self.roots, graph.value_starts, group)[places]]
        if self.offsets is not None:
            slots += graph.rows(self.offsets, graph.value_starts, group)[places]
        return slots

    def _operands(
        self, step: StepKind, forms: Forms, slots: Integers
    ) -> tuple[tuple[Operand, ...], list[Integers]]:
        """The operands of a launch, and the slots of those that are values."""
        operands: list[Operand] = []
        reads: list[Integers] = []
        for operand in step.operands:
            if isinstance(operand, Row):
                form = forms.operands[len(reads)]
                mine = _elements(slots[:, len(reads)], form.slots)
                reads.append(mine)
                operands.append(pick(form.arena, mine, form.stored.length))
            elif isinstance(operand, KeyOf):
                operands.append(NO_KEYS)
            else:
                operands.append(operand)
        return tuple(operands), reads

    def _emit(self, launch: Launch, step: StepKind, nodes: Integers) -> None:
        instructions, records, keys = self.plan.instructions, self.plan.records, self.plan.keys
        for position, operand in enumerate(step.operands):
            if isinstance(operand, KeyOf):
                keys.append(KeyNeed(len(instructions), position, len(records), operand.draw))
        instructions.append(launch)
        records.append(self.records[nodes])

    def _allocate(self, form: Form, count: int) -> Target:
        """Slots for values, each value's consecutive."""
        uses = self.arenas[form.arena]
        target = uses.allocate(count * form.slots, as_run=form.slots > 1)
        return target if form.stored.length is None else target._replace(length=form.stored.length)

    def _announce(self, forms: list[Form]) -> None:
        for form in forms:
            space = self.values.spaces[form.arena]
            if space.unannounced:
                self.plan.instructions.extend(space.unannounced)
                space.unannounced = []

    def _count(self, group: int, places: slice | Integers, targets: list[Target]) -> None:
        """Give the slots of results the number of their uses."""
        graph = self.graph
        uses = graph.rows(self.uses, graph.cell_starts, group)[places]
        first = 0
        for form, target in zip(self.forms[graph.kinds[group]].results, targets):
            mine = uses[:, first : first + form.slots].reshape(-1)
            self.arenas[form.arena].made.append((target, mine))
            first += form.slots

    def _copy(self, groups: list[int]) -> None:
        """One copy for all ready nodes of groups."""
        taken = [(group, self._take(group)) for group in groups]
        forms = [self.forms[self.graph.kinds[group]] for group in groups]
        sources = []
        for (group, nodes), form in zip(taken, forms):
            slots = self._slots(group, self.graph.places(group, nodes))
            lengths = np.array([operand.slots for operand in form.operands], np.int64)
            sources.append(expand(slots.reshape(-1), np.tile(lengths, len(nodes))))
        sizes = [form.results[0].slots for form in forms]
        total = sum(size * len(nodes) for size, (_, nodes) in zip(sizes, taken))
        source, result = concatenate(sources), forms[0].results[0]
        uses = self.arenas[result.arena]
        target = uses.allocate(total, as_run=True)
        assert isinstance(target, Span)
        self._announce([result])
        picked = pick(forms[0].operands[0].arena, source)
        self.plan.instructions.append(Copy(picked, target))
        self.arenas[picked.arena].reads.append(source)
        start = target.start
        for (group, nodes), size in zip(taken, sizes):
            count = size * len(nodes)
            self.values.slot[self.results[nodes]] = np.arange(start, start + count, size)
            places = self.graph.places(group, nodes)
            self._count(group, places, [Span(result.arena, start, count)])
            start += count
        self._enqueue(settle(self.graph, self.pending, np.sort(concatenate(n for _, n in taken))))


def plan_steps(
    recorded: Recorded, fresh: Fresh, values: ValueTable, kinds: KindTable, policy: str
) -> Plan:
    """Plan what was recorded; the new values are in the table."""
    steps = find_steps(recorded, kinds)
    if not len(steps.records):
        count_uses(values, recorded.kept, np.zeros(len(values.form), np.int64), 0)
        return Plan([], [], [], [])
    firing = Firing(steps, values, kinds, policy)
    cells = number_cells(fresh, steps, firing.graph, values, kinds)
    used = np.concatenate((firing.graph.values, recorded.kept))
    return firing.run(count_uses(values, used, cells, int(steps.cells.sum())))


def _operand_forms(graph: RecordGraph, values: ValueTable, group: int) -> list[Form]:
    forms = values.form[graph.rows(graph.values, graph.value_starts, group)]
    assert (forms == forms[0]).all(), "records of one kind take values of one form"
    return [values.forms[form] for form in forms[0].tolist()]


def _elements(first: Integers, count: int) -> Integers:
    """The slots first, first + 1, ... of each value."""
    if count == 1:
        return np.ascontiguousarray(first)
    return (first[:, None] + np.arange(count)).reshape(-1)
