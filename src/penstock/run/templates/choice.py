"""Which plans are poured into templates: those of programs that come with a fresh plan every time.

A template is made when a few plans have come that a cache did not know. It is made anew, with more
room, for a plan that does not fit; a program whose plans rarely fit is left alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from penstock.plan.outcome import Extent, Outcome
from penstock.plan.outline import Outline, fit, launches_of, outline_of, roomy, widened
from penstock.plan.plan_cache import OBJECT_BYTES, BoundedPlans
from penstock.plan.schedule import Launch
from penstock.run.fused.setting import Fusion
from penstock.run.memory.lasting import note_lasting
from penstock.run.shipped import Contents, ShippedPlanner
from penstock.run.templates.template import Poured, Template, Unfit

if TYPE_CHECKING:
    from penstock.run.engine import Columns, Run

log = logging.getLogger("penstock")

#: Plans that are seen before a template is made for their like.
SEEN = 3
#: How often in a row a plan is poured before it is taken for one that is always the same.
STREAK = 6
#: Bounds for the plans of one program that are remembered.
MOST_PLANS, MOST_BYTES = 4096, 32 << 20
#: Templates of one program, and how often one is made: at first, and once more for so many plans.
MOST_TEMPLATES, FIRST, PLANS_A_TEMPLATE = 2, 6, 16
#: Templates in vain after which plans are left alone, and stages for each launch of a plan.
MOST_FAILURES, MOST_STAGES = 5, 8

_making = threading.RLock()


@dataclass(slots=True, eq=False)
class _Candidate:
    """What is known of the plans of one kind."""

    stages: Outline = ()
    ends: tuple[int, ...] = ()
    plans: int = 0
    made: int = 0
    template: Template | None = None
    failures: int = 0
    is_hopeless: bool = False

    def widen(self, outline: Outline, extents: Sequence[Extent]) -> None:
        """There must be room for one more plan."""
        self.stages = widened(self.stages, outline)
        ends = self.ends or (0,) * len(extents)
        pairs = zip(ends, extents, strict=True)
        self.ends = tuple(e if e >= extent.end else roomy(extent.end) for e, extent in pairs)
        self.template = None

    def fail(self, *, is_final: bool = False) -> None:
        """A template was of no use: let go of its memory, and after a few leave such plans alone.
        What failed may have been the fault of the data.
        """
        self.failures += 1
        self.is_hopeless, self.template = is_final or self.failures >= MOST_FAILURES, None

    @property
    def may_be_made(self) -> bool:
        """Whether a template may be made for the next plan."""
        return self.plans > SEEN and self.made < FIRST + self.plans // PLANS_A_TEMPLATE


class Templates:
    """The templates of a program."""

    def __init__(self, devices: Collection[str]) -> None:
        self._devices = tuple(map(torch.device, devices))
        self._candidates: dict[Hashable, _Candidate] = {}
        #: Plans that were poured, by the inputs that led to them.
        self._plans: BoundedPlans[Contents] = BoundedPlans(MOST_PLANS, MOST_BYTES)
        self._last, self._streak = b"", 0
        note_lasting(self)

    def give_back(self) -> bool:
        """Let go of the templates that nobody works with."""
        free = [c for c in self._candidates.values() if c.template and not c.template.is_held]
        for candidate in free:
            candidate.template = None
        return bool(free)

    def known(self, key: bytes) -> ShippedPlanner | None:
        """Hands out the plan of an earlier call that was poured."""
        found = self._plans.find(key)
        return None if found is None else found.planner()

    def keep(self, key: bytes, plan: Contents) -> None:
        """Remember a plan that was poured."""
        if self._plans.find(key) is None:
            self._plans.keep(key, plan, _bytes_of(plan))

    def is_always(self, key: bytes) -> bool:
        """Whether the same plan has come again and again: a graph of its own serves it better."""
        self._streak = self._streak + 1 if key == self._last else 1
        self._last = key
        return self._streak > STREAK

    @property
    def device(self) -> torch.device | None:
        """The one device that values are made on, if its work is worth capturing."""
        if Fusion.mode == "never" or len(self._devices) != 1:
            return None
        return self._devices[0] if has_graphs(self._devices[0]) else None

    def run(self, run: Run, plan: Contents, columns: Columns) -> Poured | None:
        """Run a plan in a template; None where it must be run the plain way."""
        is_watched = run.recorder is not None and run.recorder.profiles
        device = self.device
        if is_watched or device is None or torch.are_deterministic_algorithms_enabled():
            return None
        launches = launches_of(plan.instructions)
        if not launches:
            return None
        with _making, torch.inference_mode(False), torch.no_grad():
            try:
                return self._run(run, launches, plan, columns, device)
            except Exception as problem:  # torch tells in many ways that work cannot be captured
                log.info("a fresh plan runs without a CUDA graph: %s", problem)
                self._candidate(run, plan.outcome).fail(is_final=isinstance(problem, Unfit))
                run.arenas, run.uniforms = [], {}
                return None

    def _run(
        self,
        run: Run,
        launches: Sequence[Launch],
        plan: Contents,
        columns: Columns,
        device: torch.device,
    ) -> Poured | None:
        outcome = plan.outcome
        candidate = self._candidate(run, outcome)
        outline = None if candidate.is_hopeless else outline_of(launches)
        if outline is None:
            return None
        if candidate.template is not None and candidate.template.is_stale(run):
            candidate.fail()
        stages = self._stages(candidate, outline, outcome.extents)
        if stages is None:
            return None
        template = candidate.template
        if template is None:
            self._make_room(candidate)
            kinds = tuple(extent.kind for extent in outcome.extents)
            template = Template(run, candidate.stages, kinds, candidate.ends, device)
            candidate.template, candidate.made = template, candidate.made + 1
        elif template.is_held:
            return None
        poured = Poured(template, launches, plan.launched, stages)
        template.pour(run, poured, columns, outcome.adopted)
        return poured

    def _stages(
        self, candidate: _Candidate, outline: Outline, extents: Sequence[Extent]
    ) -> list[int] | None:
        """The stages of a template that has room for the plan, or could be made now."""
        candidate.plans += 1
        has_room = all(e >= extent.end for e, extent in zip(candidate.ends, extents))
        stages = fit(candidate.stages, outline) if has_room else None
        if stages is None:
            candidate.widen(outline, extents)
            stages = fit(candidate.stages, outline)
        if len(candidate.stages) > MOST_STAGES * len(outline):
            candidate.fail(is_final=True)
            return None
        is_there = candidate.template is not None or candidate.may_be_made
        return stages if is_there else None

    def _candidate(self, run: Run, outcome: Outcome) -> _Candidate:
        kinds = tuple(extent.kind for extent in outcome.extents)
        key = (run.purpose, run.count.bit_length(), kinds)
        return self._candidates.setdefault(key, _Candidate())

    def _make_room(self, wanted: _Candidate) -> None:
        """Memory is bounded: the template that was made first goes."""
        held = [c for c in self._candidates.values() if c.template is not None and c is not wanted]
        if len(held) >= MOST_TEMPLATES:
            held[0].template = None


def _bytes_of(plan: Contents) -> int:
    """The bytes that a plan of launches takes, about: eight for each slot that it names."""
    launches = [item for item in plan.instructions if type(item) is Launch]
    slots = sum([k.rows * (1 + len(k.operands) + len(k.targets)) for k in launches])
    return 8 * slots + OBJECT_BYTES * len(plan.instructions)


def has_graphs(device: torch.device) -> bool:
    """Whether work on a device is worth capturing."""
    return device.type == "cuda"
