"""Plans of calls in several processes, kept for calls with the same control inputs.

Kept is the whole schedule, with the digest at each window: a rank that has a plan and one that
makes it anew send the same messages. What depends on computed values or random numbers is not kept.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from penstock.plan.exchanges import Exchange
from penstock.plan.outcome import Extent, Outcome
from penstock.plan.plan_cache import BoundedPlans, size_of
from penstock.plan.schedule import Instruction, Integers
from penstock.run.engine import Executable
from penstock.run.kept_plans import MOST_BYTES, MOST_PLANS, can_keep_plans


@dataclass(slots=True, eq=False)
class PlacedPlan:
    """A plan for several processes, as it was carried out."""

    #: The instructions that were planned together, and the digest behind them.
    windows: list[tuple[list[Instruction], bytes]] = field(default_factory=list)
    #: The instances of each launch, and the exchange of each copy between devices, in order.
    instances: list[Integers] = field(default_factory=list)
    crossings: list[Exchange] = field(default_factory=list)
    #: What it leaves behind, once it has run.
    outcome: Outcome | None = None
    #: How large it is, about, and whether more of it is kept.
    size: int = 0
    is_open: bool = True

    def add_window(self, window: list[Instruction], digest: bytes) -> None:
        """Take one more window; a plan that has become too large is let go."""
        if self.is_open:
            self.size += size_of(window)
            self.windows.append((window, digest))
        if self.size > MOST_BYTES:
            self.close()

    def add_launch(self, instances: Integers) -> None:
        """Take the instances of one more launch."""
        if self.is_open:
            self.instances.append(instances)

    def add_crossing(self, exchange: Exchange) -> None:
        """Take one more copy between devices."""
        if self.is_open:
            self.crossings.append(exchange)

    def close(self) -> None:
        """Keep nothing more, and nothing of what there is."""
        self.is_open = False
        self.windows, self.instances, self.crossings = [], [], []


class Replay:
    """A planner that has nothing to plan: it hands out what a kept plan has found."""

    def __init__(self, plan: PlacedPlan, blocks: tuple[int, ...]) -> None:
        assert plan.outcome is not None
        self.spaces: tuple[Extent, ...] = plan.outcome.extents
        self.blocks = blocks
        self.launched = deque(plan.instances)
        self.exchanges = deque(plan.crossings)


Plans = BoundedPlans[PlacedPlan]

_PLANS: WeakKeyDictionary[Executable, Plans] = WeakKeyDictionary()


def plans_of(executable: Executable) -> Plans | None:
    """The plans of a program; None where inputs do not decide them."""
    if not can_keep_plans(executable.linked):
        return None
    if executable not in _PLANS:
        _PLANS[executable] = BoundedPlans(MOST_PLANS, MOST_BYTES)
    return _PLANS[executable]
