"""Where the values of a scope are: the arena and the first slot of each.

Values are numbered as they are recorded. How a value is stored is known before it is computed;
where, only once the step that makes it is planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.plan.schedule import Integers, Kind, Span
from penstock.plan.slots import SlotSpace, grown
from penstock.plan.step_kinds import Row, StepKind, Stored


class Form(NamedTuple):
    """How values are stored, with the arena of this scope."""

    stored: Stored
    arena: int
    slots: int


class SpaceState(NamedTuple):
    """What an arena's slots were after a flush."""

    counts: Integers
    top: int
    end: int
    free: Integers
    taken: int


class State(NamedTuple):
    """What a flush left behind; never written to."""

    #: The values that it made or got, how they are stored and where.
    values: Integers
    value_forms: Integers
    slots: Integers
    #: All forms and pins of the scope until then.
    forms: tuple[Form, ...]
    pinned: tuple[Span, ...]
    spaces: list[SpaceState]


class ValueTable:
    """The values of one scope and the arenas that they are in."""

    def __init__(self) -> None:
        self.spaces: list[SlotSpace] = []
        self.arenas: dict[Kind, int] = {}
        self.forms: list[Form] = []
        self.numbers: dict[Stored, int] = {}
        #: By form: its arena, and how many slots a value takes.
        self.form_arena = np.zeros(0, np.int64)
        self.form_slots = np.zeros(0, np.int64)
        #: By value: its form, and its first slot.
        self.form = np.zeros(0, np.int64)
        self.slot = np.zeros(0, np.int64)
        #: By value, while a flush is planned: the record that makes it, or -1.
        self.maker = np.zeros(0, np.int64)
        #: By value, while a flush is planned: the value that it is a part of (or itself), and where
        #: in it it begins.
        self.root = np.zeros(0, np.int64)
        self.offset = np.zeros(0, np.int64)
        #: Slots that are never used again, because they are memory of somebody else.
        self.pinned: list[Span] = []
        #: Whether the counts of the arenas belong to a cached state.
        self.is_borrowed = False

    def reserve(self, count: int) -> None:
        """Make room for values with numbers below `count`."""
        old = len(self.form)
        if count <= old:
            return
        capacity = max(count, 2 * old, 256)
        self.form, self.slot, self.maker = (
            grown(array, capacity, -1) for array in (self.form, self.slot, self.maker)
        )
        self.root, self.offset = grown(self.root, capacity, 0), grown(self.offset, capacity, 0)
        self.root[old:] = np.arange(old, capacity)

    def number(self, stored: Stored) -> int:
        """The number of a form."""
        found = self.numbers.get(stored)
        if found is not None:
            return found
        arena = self.arenas.setdefault(stored.kind, len(self.spaces))
        if arena == len(self.spaces):
            self.spaces.append(SlotSpace(arena, stored.kind))
        slots = 1 if stored.length is None else stored.length
        self.numbers[stored] = len(self.forms)
        self.forms.append(Form(stored, arena, slots))
        self.form_arena = np.append(self.form_arena, arena)
        self.form_slots = np.append(self.form_slots, slots)
        return self.numbers[stored]

    def adopt(self, stored: Stored, values: Integers) -> Span:
        """Slots for values that exist already; they are never reused."""
        number = self.number(stored)
        form = self.forms[number]
        space = self.spaces[form.arena]
        count = len(values) * form.slots
        start = space.adopt(count)
        space.unannounced.pop()  # the runner installs the values itself
        self.pinned.append(Span(form.arena, start, count))
        self.reserve(int(values.max(initial=-1)) + 1)
        self.form[values] = number
        self.slot[values] = start + np.arange(len(values)) * form.slots
        return Span(form.arena, start, count, stored.length)

    def settle(self, fresh: Integers, aliases: Integers) -> None:
        """All values made in a flush have their slots: aliases get theirs."""
        self.slot[aliases] = self.slot[self.root[aliases]] + self.offset[aliases]
        self.root[aliases], self.offset[aliases] = aliases, 0
        self.maker[fresh] = -1

    def state(self, fresh: Integers) -> State:
        """All that a flush has changed, which made or got `fresh` values."""
        spaces = [
            SpaceState(space.counts.copy(), space.top, space.end, space.free, space.taken)
            for space in self.spaces
        ]
        slots, forms = self.slot[fresh], self.form[fresh]
        return State(fresh, forms, slots, tuple(self.forms), tuple(self.pinned), spaces)

    def restore(self, state: State) -> None:
        """Be as after the flush that left the state; its arrays are not written to."""
        for number, form in enumerate(state.forms):
            assert self.number(form.stored) == number, "scopes number forms alike"
        self.reserve(int(state.values.max(initial=-1)) + 1)
        self.form[state.values], self.slot[state.values] = state.value_forms, state.slots
        self.pinned = list(state.pinned)
        for space, saved in zip(self.spaces, state.spaces, strict=True):
            space.counts, space.top, space.end, space.free, space.taken = saved
        self.is_borrowed = True

    def own(self) -> None:
        """Make counts that belong to a cached state one's own before they change."""
        if self.is_borrowed:
            for space in self.spaces:
                space.counts = space.counts.copy()
            self.is_borrowed = False

    def live(self) -> int:
        """How many slots are referred to, pins apart."""
        counts = [space.counts[: space.end].copy() for space in self.spaces]
        for span in self.pinned:
            counts[span.arena][span.start : span.start + span.count] -= 1
        assert all((count >= 0).all() for count in counts), "a slot was released too often"
        return sum(int((count > 0).sum()) for count in counts)


class KindTable:
    """What the planner asks of step kinds, as arrays by kind; kinds are learnt when they occur."""

    def __init__(self, kinds: Sequence[StepKind], values: ValueTable) -> None:
        self.kinds = kinds
        self.values = values
        self.known = np.zeros(0, np.int64)
        #: How many values a record takes and makes, and how many slots it fills.
        self.arity = np.zeros(0, np.int64)
        self.made = np.zeros(0, np.int64)
        self.cells = np.zeros(0, np.int64)
        self.is_alias = np.zeros(0, np.int64)
        #: Where its results begin in the arrays by result.
        self.first = np.zeros(0, np.int64)
        #: By result of a kind: its form, and its first slot counted from the first slot of the
        #: record (of an alias: of its operand).
        self.result_form = np.zeros(0, np.int64)
        self.result_start = np.zeros(0, np.int64)

    def learn(self, present: Integers) -> None:
        """Get to know the kinds that occur."""
        capacity = len(self.kinds)
        if capacity > len(self.known):
            for name in ("known", "arity", "made", "cells", "is_alias", "first"):
                setattr(self, name, grown(getattr(self, name), capacity, 0))
        for number in present[self.known[present] == 0].tolist():
            self._learn(number, self.kinds[number])

    def results(self, kind: int) -> list[Form]:
        """How what a kind makes is stored."""
        first, count = int(self.first[kind]), int(self.made[kind])
        return [self.values.forms[form] for form in self.result_form[first : first + count]]

    def _learn(self, number: int, kind: StepKind) -> None:
        forms = [self.values.number(stored) for stored in kind.results]
        slots = [self.values.forms[form].slots for form in forms]
        starts = np.cumsum([0, *slots])
        self.known[number] = 1
        self.arity[number] = sum(isinstance(operand, Row) for operand in kind.operands)
        self.made[number] = len(forms)
        self.is_alias[number] = bool(kind.parts)
        self.cells[number] = 0 if kind.parts else starts[-1]
        self.first[number] = len(self.result_form)
        self.result_form = np.concatenate((self.result_form, np.array(forms, np.int64)))
        if kind.parts:
            assert [part[1] for part in kind.parts] == [stored.length for stored in kind.results]
            starts = np.array([*(first for first, _ in kind.parts), 0])
        self.result_start = np.concatenate((self.result_start, starts[:-1]))
