"""Plans recorded steps: what was recorded since the last flush becomes instructions.

The planner is pure: the same records give the same instructions, byte for byte. It keeps from flush
to flush where every value is, and frees slots whose values nobody reads any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.plan.fresh_values import enter_values
from penstock.plan.plan_cache import CachedFlush, PlanCache, digest_flush
from penstock.plan.policies import POLICIES
from penstock.plan.random_keys import as_signed, mix
from penstock.plan.schedule import Hosted, Instruction, Integers, Launch, Span
from penstock.plan.slot_uses import drop
from penstock.plan.step_kinds import KeyOf, Row, StepKind, Stored
from penstock.plan.step_launches import Plan, plan_steps
from penstock.plan.value_table import KindTable, ValueTable

__all__ = ["Flush", "KeyOf", "Recorded", "Row", "StepKind", "StepPlanner", "Stored"]


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """What was recorded since the last flush."""

    #: The kind of each record, in recording order (operands come before those who read them).
    kinds: Integers
    #: The values that the records take, one record after the other.
    operands: Integers
    #: The first value that each record makes; the others follow it.
    results: Integers
    #: The instance of each record.
    instances: Integers
    #: For each record, how many random draws its instance had made before it.
    draws: Integers
    #: New values that come from outside, grouped by how they are stored.
    inputs: tuple[tuple[Stored, Integers], ...]
    #: Values made here that may still be used after this flush.
    kept: Integers
    #: Values kept by earlier flushes that nobody needs after this one.
    dropped: Integers


class Flush(NamedTuple):
    """What is to be done, and where the inputs are expected."""

    instructions: list[Instruction]
    #: For each entry of `Recorded.inputs` the slots of its values, pinned.
    inputs: list[Span]


class StepPlanner:
    """Plans the flushes of one scope."""

    def __init__(
        self,
        kinds: Sequence[StepKind],
        *,
        policy: str = "rank",
        seed: int = 0,
        cache: PlanCache | None = None,
    ) -> None:
        assert policy in POLICIES, policy
        self.policy = policy
        self.seed = seed
        self.cache = cache
        self.values = ValueTable()
        self.kinds = KindTable(kinds, self.values)
        self.spaces = self.values.spaces
        #: The instances of the rows of each launch that is planned and not yet run, for errors.
        self.launched: deque[Integers] = deque()
        #: Whether every flush so far was planned before.
        self.knew_all = True
        #: Of everything flushed so far.
        self.digest = policy.encode()

    def flush(self, recorded: Recorded) -> Flush:
        """Plan everything that was recorded."""
        found = None
        if self.cache is not None:
            self.digest = digest_flush(self.digest, recorded)
            found = self.cache.find(self.digest)
        self.knew_all &= found is not None
        if found is None:
            plan = self._plan(recorded)
        else:
            plan = found.plan
            self.values.restore(found.state)
        return self._complete(plan, recorded)

    def where(self, values: Integers) -> tuple[Integers, Integers]:
        """The arena and the first slot of each value."""
        slots = self.values.slot[values]
        assert not len(slots) or slots.min() >= 0, "a value is asked for that nobody has made"
        return self.values.form_arena[self.values.form[values]], slots

    def stored(self, value: int) -> Stored:
        """How a value is stored."""
        return self.values.forms[int(self.values.form[value])].stored

    def lasting(self) -> list[object]:
        """What copies of the planner share with it: it lives longer than any scope."""
        return [self.cache, self.kinds.kinds]

    def live(self) -> int:
        """How many slots are referred to; those of inputs, which stay, only while they are used."""
        return self.values.live()

    def _plan(self, recorded: Recorded) -> Plan:
        values, kinds = self.values, self.kinds
        values.own()
        kinds.learn(np.flatnonzero(np.bincount(recorded.kinds)))
        numbers = [numbers for _, numbers in recorded.inputs]
        inputs = [values.adopt(*entry) for entry in recorded.inputs]
        fresh = enter_values(recorded, values, kinds)
        drop(values, recorded.dropped)
        plan = plan_steps(recorded, fresh, values, kinds, self.policy)
        plan.inputs.extend(inputs)
        values.settle(fresh.values, fresh.aliases)
        if self.cache is not None:
            state = values.state(np.concatenate((fresh.values, *numbers)))
            self.cache.keep(self.digest, CachedFlush(plan, state))
        return plan

    def _complete(self, plan: Plan, recorded: Recorded) -> Flush:
        """The plan with this flush's instances and random keys."""
        self.launched.extend(recorded.instances[records] for records in plan.records)
        instructions = list(plan.instructions)
        for need in plan.keys:
            records = plan.records[need.launch]
            keys = mix(self.seed, recorded.instances[records])
            drawn = as_signed(mix(keys, recorded.draws[records] + need.draw))
            launch = instructions[need.instruction]
            assert isinstance(launch, Launch)
            operands = list(launch.operands)
            operands[need.operand] = Hosted(drawn)
            instructions[need.instruction] = launch._replace(operands=tuple(operands))
        return Flush(instructions, list(plan.inputs))
