"""Steps recorded at random, and what tests of planned steps share."""

from __future__ import annotations

import numpy as np

from penstock.plan.recorded import Stored
from penstock.plan.schedule import Schedule
from tests.unit.plan.recorded_scope import Scope, stored

FORMS = [stored(), stored(2), stored(length=2), stored(length=4), stored(2, length=3)]


def digest(instructions) -> str:
    return Schedule(instructions=list(instructions)).digest()


class RandomProgram:
    """Records steps at random; the same seed records the same."""

    def __init__(self, scope: Scope, seed: int) -> None:
        self.scope = scope
        self.random = np.random.default_rng(seed)
        self.usable: list[int] = []

    def choose(self, items):
        return items[self.random.integers(len(items))]

    def record(self, steps: int) -> None:
        for _ in range(3):
            form = self.choose(FORMS)
            self.usable += [self.scope.input(form, seed) for seed in range(2)]
        for _ in range(steps):
            step = self.choose([self.launch, self.launch, self.launch, self.alias, self.copy])
            self.usable += step(int(self.random.integers(5)))

    def launch(self, instance: int) -> list[int]:
        recent = self.usable[-12:]
        operands = [self.choose(recent) for _ in range(self.random.integers(3))]
        results = [self.choose(FORMS) for _ in range(1 + self.random.integers(2))]
        shared, draws = self.choose([(), (), (3,)]), self.choose([0, 0, 2])
        block = int(self.random.integers(3))
        return self.scope.launch(
            block, operands, results, shared=shared, draws=draws, instance=instance
        )

    def alias(self, instance: int) -> list[int]:
        long = [value for value in self.usable if self.scope.forms[value].length is not None]
        if not long:
            return []
        value = self.choose(long)
        length = self.scope.forms[value].length
        parts = []
        for _ in range(1 + self.random.integers(3)):
            first = int(self.random.integers(length))
            rest = 1 + int(self.random.integers(length - first))
            parts.append((first, self.choose([None, rest])))
        return self.scope.alias(value, *parts, instance=instance)

    def copy(self, instance: int) -> list[int]:
        kind = self.scope.forms[self.choose(self.usable)].kind
        same = [value for value in self.usable if self.scope.forms[value].kind == kind]
        operands = [self.choose(same) for _ in range(1 + self.random.integers(3))]
        total = sum(self.scope.forms[value].length or 1 for value in operands)
        form = Stored(kind, total)
        if kind.shape == () and total % 2 == 0 and self.random.integers(2):
            form = stored(2, length=total // 2)
        return [self.scope.copy(operands, form, instance=instance)]

    def flush(self) -> list:
        """Keep some of what is new, drop some of what was kept."""
        new = range(self.scope.first, len(self.scope.values))
        kept = [value for value in new if self.random.integers(2)]
        before = sorted(self.scope.kept)
        dropped = [value for value in before if self.random.integers(3) == 0]
        instructions = self.scope.flush(kept, dropped)
        self.usable = sorted(self.scope.kept)
        return instructions


def run_random(scope: Scope, seed: int, flushes: int = 4, steps: int = 50) -> list:
    program = RandomProgram(scope, seed)
    found = []
    for _ in range(flushes):
        program.record(steps)
        found.append(program.flush())
    return found


def drop_all(scope: Scope) -> None:
    scope.flush([], sorted(scope.kept))
    assert scope.planner.live() == 0


def chain(scope: Scope, length: int, instance: int) -> int:
    value = scope.launch(0, [], instance=instance)[0]
    for _ in range(length):
        value = scope.launch(1, [value], instance=instance)[0]
    return value
