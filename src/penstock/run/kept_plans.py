"""Plans of calls that are kept, to be run again for the same control inputs.

Kept is what a run has prepared, what its plan leaves behind, and the ways of backward passes. A
program whose control depends on computed values has no plan before it runs, and the keys of random
draws are part of a plan: such programs are planned at every call. Where no plan has come again for
long, as in training on shuffled trees, plans are let go, and only their digests are remembered: the
objects of plans that nobody asks for are work for the collector of garbage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from penstock.plan.linked import Linked
from penstock.plan.outcome import Extent, Outcome
from penstock.plan.plan_cache import BoundedPlans, size_of
from penstock.plan.schedule import Chunk, Hosted, Integers, Picks
from penstock.run.arenas import Mirror
from penstock.run.prepared import (
    Prepared,
    PreparedCopy,
    PreparedLaunch,
    PreparedPadding,
    PreparedStore,
    PreparedWindow,
)

#: Instructions planned ahead of the runner, at most.
WINDOW = 512

#: Bounds for the plans of one program.
MOST_PLANS, MOST_BYTES = 4096, 256 << 20

#: Plans that are kept one after the other in vain; digests of later ones that are remembered.
PATIENCE, MOST_SEEN = 128, 1 << 14

#: Ways back that one plan keeps: training takes one.
MOST_WAYS = 2

#: What an operand or a result of a prepared launch takes besides its arrays, about.
OBJECT_BYTES = 1000


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class KeptPlan:
    """A plan that was run, ready to be run again."""

    outcome: Outcome
    windows: tuple[PreparedWindow, ...] = ()
    #: Whether the plain machine has made it: native code does not run such plans.
    is_plain: bool = False
    #: The ways of backward passes, by the wires and outputs that gradients flow through; made and
    #: looked up by `penstock.autodiff`.
    ways: dict[Hashable, Any] = field(default_factory=dict)
    #: Bytes that its pages save, by whether they save rows only; likewise.
    saved: dict[bool, int] = field(default_factory=dict)
    #: The inputs that runs of it have brought to other devices.
    mirrors: set[Mirror] = field(default_factory=set)

    @property
    def launches(self) -> int:
        """How many steps it has, most of them launches."""
        return sum(len(window.steps) for window in self.windows)

    @property
    def takes_ways(self) -> bool:
        """Whether one more way may be kept."""
        return len(self.ways) < MOST_WAYS

    @property
    def spaces(self) -> tuple[Extent, ...]:
        """What each arena holds."""
        return self.outcome.extents

    @property
    def launched(self) -> deque[Integers]:
        """Prepared launches know their instances."""
        return deque()


class KeptPlans(BoundedPlans[KeptPlan]):
    """The plans of one program."""

    def __init__(self) -> None:
        super().__init__(MOST_PLANS, MOST_BYTES)
        #: Plans that were kept since one was found, and what others are known by, oldest first.
        self._in_vain = 0
        self._seen: dict[bytes, None] = {}

    def find(self, key: bytes) -> KeptPlan | None:
        """The plan of that digest, if it is known."""
        found = super().find(key)
        if found is not None:
            self._in_vain = 0
        return found

    def is_worth_keeping(self, key: bytes) -> bool:
        """Whether a plan that is made now may come again: it has, or others have, not long ago."""
        with self._lock:
            if key in self._seen:
                del self._seen[key]
                self._in_vain = 0
            if self._in_vain < PATIENCE:
                self._in_vain += 1
                return True
            self._seen[key] = None
            if len(self._seen) > MOST_SEEN:
                del self._seen[next(iter(self._seen))]
            return False


def can_keep_plans(linked: Linked) -> bool:
    """Whether the inputs of a program decide its plan."""
    nodes = (node for context in linked.contexts for node in context.nodes)
    return not linked.graph.has_random and not any(node.kind == "read" for node in nodes)


class Keeping:
    """Collects the windows of a run under way, as long as they are worth keeping."""

    __slots__ = ("_bytes", "_plans", "_windows", "is_worth_it", "key")

    def __init__(self, plans: KeptPlans, key: bytes) -> None:
        self.key = key
        self._plans = plans
        #: Whether the plan may come again, and is small enough so far.
        self.is_worth_it = plans.is_worth_keeping(key)
        self._windows: list[PreparedWindow] = []
        self._bytes = 0

    def add(self, window: PreparedWindow) -> None:
        """Take one more window; a plan that has become too large is let go."""
        if not self.is_worth_it:
            return
        self._bytes += _size(window)
        self._windows.append(window)
        if self._bytes > self._plans.most_bytes:
            self.is_worth_it = False
            self._windows.clear()

    def keep(self, outcome: Outcome, *, is_plain: bool) -> KeptPlan | None:
        """The run has ended: others may use its plan, unless it is too large or will not come
        again.
        """
        if not self.is_worth_it:
            return None
        where = (outcome.inputs, outcome.results, outcome.adopted, outcome.extents)
        size = self._bytes + size_of(where)
        if size > self._plans.most_bytes:
            return None
        windows = tuple(_trimmed(window, outcome) for window in self._windows)
        plan = KeptPlan(outcome, windows, is_plain)
        self._plans.keep(self.key, plan, size)
        return plan


def _trimmed(window: PreparedWindow, outcome: Outcome) -> PreparedWindow:
    """The window without room that nobody uses: small memory is quickly got."""
    ends = outcome.extents
    growth = tuple(
        [
            Chunk(chunk.arena, chunk.start, min(chunk.count, ends[chunk.arena].end - chunk.start))
            for chunk in window.growth
        ]
    )
    return PreparedWindow(growth, window.steps, window.records)


def _size(window: PreparedWindow) -> int:
    """The bytes of a window, about."""
    records = window.records
    size = 0 if records is None else records.heads.nbytes + records.data.nbytes
    return size + sum(map(_size_of_step, window.steps))


def _size_of_step(step: Prepared) -> int:
    """An index takes its memory often: as slots, as a tensor that counts from a chunk, and for the
    ways back.
    """
    if isinstance(step, PreparedLaunch):
        places = (*step.launch.operands, *step.launch.targets)
        size = OBJECT_BYTES * (len(places) + 1) + step.instances.nbytes
        for item in places:
            if type(item) is Picks:
                size += (2 + MOST_WAYS) * item.slots.nbytes
            elif type(item) is Hosted:
                size += item.values.nbytes
        return size
    if isinstance(step, PreparedStore):
        return 2 * size_of(step.store) + OBJECT_BYTES
    if isinstance(step, PreparedPadding):
        return 2 * (2 + MOST_WAYS) * size_of(step.padding) + OBJECT_BYTES
    return 2 * size_of(step.copy if isinstance(step, PreparedCopy) else step.read) + OBJECT_BYTES
