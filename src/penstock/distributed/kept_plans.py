"""Plans of calls in several processes, kept for calls with the same control inputs.

A plan is a tree: after a stage that reads values back comes one stage for each answer that was ever
read there. A call follows it as long as it reads what an earlier one has read. Every stage has the
digest of the schedule behind it: a rank that knows a stage and one that plans it anew send the same
messages. What depends on random numbers is not kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from penstock.distributed.turns import Turn
from penstock.plan.call_inputs import Adopted
from penstock.plan.outcome import Extent, Outcome
from penstock.plan.plan_cache import OBJECT_BYTES, BoundedPlans, size_of
from penstock.plan.schedule import Array, Chunk, Instruction, Integers, Kind
from penstock.run.executable import Executable
from penstock.run.kept_plans import MOST_BYTES, MOST_PLANS


@dataclass(slots=True, eq=False)
class Stage:
    """Instructions that were planned together: what this rank does of them, and what may follow."""

    #: The digest of the schedule behind them.
    digest: bytes
    #: What the arenas of the plan hold, as far as there are any by then.
    kinds: tuple[Kind, ...]
    #: The chunks of this rank's arenas, which come first.
    growth: tuple[Chunk, ...]
    #: None until the stage is carried out for the first time.
    turns: tuple[Turn, ...] | None = None
    #: The stages that have followed, by what was read.
    after: dict[bytes, Stage] = field(default_factory=dict)
    #: What the call leaves behind, if this is the last stage.
    outcome: Outcome | None = None


@dataclass(slots=True, eq=False)
class PlacedPlan:
    """All that was planned for calls with the same control inputs."""

    #: Where inputs go.
    adopted: Adopted = ()
    first: Stage | None = None
    #: How large it is, about.
    size: int = 0

    def add(
        self, before: Stage | None, key: bytes, stage: Stage, window: Sequence[Instruction]
    ) -> None:
        """Keep a stage behind another, or as the first, unless there are too many."""
        if self.size > MOST_BYTES:
            return
        self.size += 4 * OBJECT_BYTES + 2 * size_of(tuple(window))
        if before is None:
            self.first = stage
        else:
            before.after[key] = stage


class Known(Sequence[Extent]):
    """A planner that has nothing to plan: it says what the arenas of a stage hold."""

    def __init__(self, devices: int) -> None:
        self.kinds: tuple[Kind, ...] = ()
        self.launched: deque[Integers] = deque()
        self._devices = devices

    @property
    def spaces(self) -> Sequence[Extent]:
        """The arenas of all devices; how many slots they have is known in the end."""
        return self

    def __len__(self) -> int:
        return len(self.kinds) * self._devices

    def __getitem__(self, number: Any) -> Any:
        return Extent(self.kinds[number // self._devices], 0)


def key_of(answer: Sequence[Array] | None) -> bytes:
    """What was read, as far as it decides what follows; who reads is known by the stage."""
    return b"" if answer is None else b"".join([values.tobytes() for values in answer])


Plans = BoundedPlans[PlacedPlan]

_PLANS: WeakKeyDictionary[Executable, Plans] = WeakKeyDictionary()


def plans_of(executable: Executable) -> Plans | None:
    """The plans of a program; None where random numbers decide them."""
    if executable.graph.has_random:
        return None
    if executable not in _PLANS:
        _PLANS[executable] = BoundedPlans(MOST_PLANS, MOST_BYTES)
    return _PLANS[executable]
