"""A scope of recorded steps in miniature: records, plans, runs, checks; numbers for tensors.

Each step is computed at once when it is recorded, one by one; what the planner's instructions
leave in the arenas must be the same.
"""

from __future__ import annotations

import numpy as np

from penstock.plan.random_keys import as_signed, mix
from penstock.plan.recorded import KeyOf, Recorded, Row, StepKind, StepPlanner, Stored
from penstock.plan.schedule import Chunk, Copy, Hosted, Kind, Launch, Picks, Shared, Span

PRIME = 1_000_003
POISON = -77

#: Step kinds are numbered for the whole process, as in the real thing.
KINDS: list[StepKind] = []
NUMBERS: dict[StepKind, int] = {}


def stored(*shape: int, length: int | None = None, dtype: str = "int64") -> Stored:
    return Stored(Kind(dtype, shape, "cpu"), length)


def shape_of(form: Stored) -> tuple[int, ...]:
    return form.kind.shape if form.length is None else (form.length, *form.kind.shape)


def kind_number(kind: StepKind) -> int:
    if kind not in NUMBERS:
        NUMBERS[kind] = len(KINDS)
        KINDS.append(kind)
    return NUMBERS[kind]


def compute(block: int, operands: list[np.ndarray], number: int, shape: tuple[int, ...]):
    """What a block makes of one row."""
    total = block * 17 + number * 5
    for position, operand in enumerate(operands):
        flat = np.asarray(operand).reshape(-1) % PRIME
        total += int(((position + 2) * flat * (np.arange(len(flat)) + 1)).sum())
    size = int(np.prod(shape, dtype=np.int64))
    return ((total * (np.arange(size) + 3)) % PRIME).reshape(shape)


class Arenas:
    """Carries out instructions."""

    def __init__(self, planner: StepPlanner) -> None:
        self.planner = planner
        self.arrays: dict[int, np.ndarray] = {}

    def grow(self, arena: int, start: int, count: int) -> None:
        shape = self.planner.spaces[arena].kind.shape
        old = self.arrays.get(arena, np.empty((0, *shape), np.int64))
        assert start == len(old)
        self.arrays[arena] = np.concatenate((old, np.full((count, *shape), POISON)))

    def index(self, place: Span | Picks):
        if isinstance(place, Span):
            return np.arange(place.start, place.start + place.count)
        return place.slots

    def gather(self, place: Span | Picks, rows: int) -> np.ndarray:
        values = self.arrays[place.arena][self.index(place)]
        assert not (values == POISON).any()
        return values if place.length is None else values.reshape(rows, place.length, -1)

    def write(self, place: Span | Picks, values: np.ndarray) -> None:
        slots = self.index(place)
        assert len(set(slots.tolist())) == len(slots)
        array = self.arrays[place.arena]
        array[slots] = values.reshape(len(slots), *array.shape[1:])

    def carry_out(self, instructions) -> None:
        for item in instructions:
            if isinstance(item, Chunk):
                self.grow(item.arena, item.start, item.count)
            elif isinstance(item, Copy):
                assert isinstance(item.target, Span)
                self.write(item.target, self.arrays[item.source.arena][self.index(item.source)])
            else:
                self._launch(item)

    def _launch(self, item: Launch) -> None:
        columns = []
        for operand in item.operands:
            if isinstance(operand, Shared):
                columns.append(np.full(item.rows, operand.wire))
            elif isinstance(operand, Hosted):
                assert operand.values.dtype == np.int64
                columns.append(operand.values)
            else:
                columns.append(self.gather(operand, item.rows))
        assert all(len(column) == item.rows for column in columns)
        for number, target in enumerate(item.targets):
            shape = self.arrays[target.arena].shape[1:]
            shape = shape if target.length is None else (target.length, *shape)
            rows = [
                compute(item.block, [column[row] for column in columns], number, shape)
                for row in range(item.rows)
            ]
            self.write(target, np.stack(rows))


class Scope:
    """Records steps and flushes them."""

    def __init__(self, policy: str = "rank", seed: int = 0, cache=None) -> None:
        self.planner = StepPlanner(KINDS, policy=policy, seed=seed, cache=cache)
        self.seed = seed
        self.arenas = Arenas(self.planner)
        self.values: list[np.ndarray] = []
        self.forms: list[Stored] = []
        self.draws: dict[int, int] = {}
        #: Values kept by earlier flushes.
        self.kept: set[int] = set()
        self._clear()

    def _clear(self) -> None:
        self.first = len(self.values)
        self.records: list[tuple[int, list[int], int, int, int]] = []
        self.inputs: dict[Stored, list[int]] = {}

    def input(self, form: Stored, seed: int = 0) -> int:
        self.inputs.setdefault(form, []).append(len(self.values))
        return self._make(form, compute(99, [np.array(seed)], 0, shape_of(form)))

    def _make(self, form: Stored, value: np.ndarray) -> int:
        self.values.append(value)
        self.forms.append(form)
        return len(self.values) - 1

    def _record(self, kind: StepKind, operands: list[int], instance: int, draws: int = 0) -> None:
        first = self.draws.get(instance, 0)
        self.draws[instance] = first + draws
        number = kind_number(kind)
        self.records.append((number, operands, len(self.values), instance, first))

    def launch(self, block, operands, results=None, *, shared=(), draws=0, instance=0) -> list[int]:
        """A step of a block; keys come first, then values, then uniforms."""
        results = results or [stored()]
        name = f"{block}/{[self.forms[value] for value in operands]}"
        keys = [KeyOf(draw) for draw in range(draws)]
        places = (*keys, *(Row() for _ in operands), *map(Shared, shared))
        first = self.draws.get(instance, 0)
        self._record(StepKind(name, places, tuple(results), block), operands, instance, draws)
        key = mix(self.seed, instance)
        taken = [as_signed(mix(key, first + draw)) for draw in range(draws)]
        taken += [self.values[value] for value in operands] + [np.array(wire) for wire in shared]
        return [
            self._make(form, compute(block, taken, number, shape_of(form)))
            for number, form in enumerate(results)
        ]

    def alias(self, value: int, *parts: tuple[int, int | None], instance: int = 0) -> list[int]:
        kind = self.forms[value].kind
        results = tuple(Stored(kind, length) for _, length in parts)
        name = f"alias of {self.forms[value]}"
        self._record(StepKind(name, (Row(),), results, parts=parts), [value], instance)
        made = []
        for (first, length), form in zip(parts, results):
            whole = self.values[value]
            made.append(self._make(form, whole[first : first + length] if length else whole[first]))
        return made

    def copy(self, operands: list[int], form: Stored, *, instance: int = 0) -> int:
        name = f"copy {[self.forms[value] for value in operands]}"
        places = tuple(Row() for _ in operands)
        self._record(StepKind(name, places, (form,), is_copy=True), operands, instance)
        shape = (-1, *self.forms[operands[0]].kind.shape)
        whole = np.concatenate([self.values[value].reshape(shape) for value in operands])
        return self._make(form, whole.reshape(shape_of(form)))

    def recorded(self, kept, dropped=()) -> Recorded:
        def numbers(items):
            return np.array(list(items), np.int64)

        columns = list(zip(*self.records)) or [()] * 5
        return Recorded(
            kinds=numbers(columns[0]),
            operands=numbers(value for values in columns[1] for value in values),
            results=numbers(columns[2]),
            instances=numbers(columns[3]),
            draws=numbers(columns[4]),
            inputs=tuple((form, numbers(values)) for form, values in self.inputs.items()),
            kept=numbers(kept),
            dropped=numbers(dropped),
        )

    def flush(self, kept=None, dropped=()) -> list:
        """Plan, run and check; everything new is kept unless told."""
        kept = range(self.first, len(self.values)) if kept is None else kept
        recorded = self.recorded(kept, dropped)
        planned = self.planner.flush(recorded)
        for (_, values), span in zip(recorded.inputs, planned.inputs, strict=True):
            self.arenas.grow(span.arena, span.start, span.count)
            self.arenas.write(span, np.stack([self.values[value] for value in values]))
        self.arenas.carry_out(planned.instructions)
        self._check_instances(planned.instructions)
        self.kept = (self.kept | set(kept)) - set(dropped)
        self._clear()
        self.check()
        return planned.instructions

    def _check_instances(self, instructions) -> None:
        for item in instructions:
            if isinstance(item, Launch):
                rows = self.planner.launched.popleft()
                assert len(rows) == item.rows
        assert not self.planner.launched

    def check(self) -> None:
        """Every kept value is where the planner says it is."""
        numbers = np.array(sorted(self.kept), np.int64)
        for number, arena, slot in zip(numbers.tolist(), *self.planner.where(numbers)):
            form = self.planner.stored(number)
            assert form == self.forms[number]
            assert self.planner.spaces[arena].kind == form.kind
            count = form.length or 1
            found = self.arenas.arrays[arena][slot : slot + count]
            assert (found.reshape(-1) == self.values[number].reshape(-1)).all(), number


def launches(instructions) -> list[Launch]:
    return [item for item in instructions if isinstance(item, Launch)]
