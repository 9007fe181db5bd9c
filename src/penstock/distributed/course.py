"""The stages that one call goes through: those that are known, and others as they are planned.

The planner is begun only where a stage is not known. It is then told what was read so far, and
plans what has been carried out already once more: equal answers, equal plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.distributed.kept_plans import Known, PlacedPlan, Stage, key_of
from penstock.distributed.messages import RollingDigest
from penstock.plan.call_inputs import CallInputs
from penstock.plan.limits import Limits
from penstock.plan.machine import Steps
from penstock.plan.placed import PlacedPlanner
from penstock.plan.schedule import Array, Chunk, Instruction, Kind
from penstock.run.arenas import merged

if TYPE_CHECKING:
    from penstock.distributed.run import Placing


#: The digest of an empty schedule.
_START = RollingDigest(b"call").value


class Course:
    """One call on its way through a plan."""

    def __init__(self, run: Placing, plan: PlacedPlan, inputs: CallInputs, limits: Limits) -> None:
        self._run, self._plan = run, plan
        self._inputs, self._limits = inputs, limits
        self._stage: Stage | None = None
        #: What was read behind each stage so far, after a first that stands for the beginning.
        self._answers: list[list[Array] | None] = []
        #: The planner and its steps, if anything was not known.
        self._planning: tuple[PlacedPlanner, Steps] | None = None
        #: The instructions of the stage at hand, if it was not known.
        self.window: list[Instruction] = []
        self._known = run.planner = Known(len(run.ranks))
        if plan.first is None:
            self._planning = self._begin()
        else:
            self._known.kinds = plan.first.kinds

    def next(self, answer: list[Array] | None) -> Stage | None:
        """The stage that comes when this was read; None behind the last."""
        before, key = self._stage, key_of(answer)
        if before is not None and before.outcome is not None:
            return None
        found = self._plan.first if before is None else before.after.get(key)
        if found is None or found.turns is None:  # the call that planned it may have failed there
            found = self._planned(answer)
            self._plan.add(before, key, found, self.window)
        self._known.kinds = found.kinds
        self._answers.append(answer)
        self._stage = found
        return found

    # ---- what is not known -----------------------------------------------------------------------

    def _planned(self, answer: list[Array] | None) -> Stage:
        run = self._run
        if self._planning is None:
            self._planning = self._catch_up()
        planner, steps = self._planning
        self.window, is_over = run.plan_window(planner, steps, answer)
        digest = RollingDigest()
        digest.value = _START if self._stage is None else self._stage.digest
        digest.add(self.window)
        chunks = (item for item in self.window if isinstance(item, Chunk))
        growth = merged(chunk for chunk in chunks if run.is_mine(chunk.arena))
        stage = Stage(digest.value, self._kinds(planner), growth)
        if is_over:
            stage.outcome = planner.outcome(self._plan.adopted)
        return stage

    def _kinds(self, planner: PlacedPlanner) -> tuple[Kind, ...]:
        before = () if self._stage is None else self._stage.kinds
        more = planner.machine.spaces[len(before) :]
        return (*before, *(space.kind for space in more)) if more else before

    def _begin(self) -> tuple[PlacedPlanner, Steps]:
        planner = self._run.planner = self._run.new_planner(self._limits)
        self._plan.adopted = planner.take(self._inputs)
        return planner, planner.run()

    def _catch_up(self) -> tuple[PlacedPlanner, Steps]:
        """Plan all stages that lie behind, and carry out nothing."""
        planner, steps = self._begin()
        for answer in self._answers:
            self._run.plan_window(planner, steps, answer)
            planner.launched.clear()
            planner.exchanges.clear()
        return planner, steps
