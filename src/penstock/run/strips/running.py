"""Fresh plans on a CPU, run by native code: which programs, and how planner and runner take turns.

Native code is used where the native planner has planned, and where blocks have been compiled: what
it saves is the Python around launches, so a plan that is kept, or that somebody looks at, goes the
usual way.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from penstock.plan.native.decode import Records
from penstock.plan.planners import gives_records
from penstock.plan.schedule import Instruction
from penstock.run.blocks import RunnableBlock
from penstock.run.collector import collector_waits
from penstock.run.distinct import is_distinct_always
from penstock.run.fused.setting import Fusion
from penstock.run.strips.batch import carry_out_batch
from penstock.run.strips.forms import StripForms
from penstock.run.strips.library import Library, library

if TYPE_CHECKING:
    from penstock.plan.native.machine import NativeMachine
    from penstock.run.engine import Run


@dataclass(frozen=True, slots=True)
class Stripped:
    """A plan to be made and run by native code."""

    machine: NativeMachine
    forms: StripForms
    #: None as long as no block has code.
    library: Library | None

    def carry_out(self, run: Run) -> None:
        """Plan a batch and carry it out, until all is done."""
        batches = self.machine.batches()
        batch = self._plan(run, batches)
        while batch is not None:
            if not isinstance(batch, Records):
                run._carry_out_prepared([batch])
            elif self.library is None or batch.given:
                self._carry_out_by_python(run, batch)
            else:
                carry_out_batch(run, self.machine, batch, self.forms, self.library)
            batch = self._plan(run, batches)

    def _carry_out_by_python(self, run: Run, batch: Records) -> None:
        window = list(self.machine.instructions(batch))
        for step in run._carry_out_prepared(window)[0].steps:
            self.forms.learn(run, step)

    def _plan(
        self, run: Run, batches: Iterator[Records | Instruction]
    ) -> Records | Instruction | None:
        """The next batch, if there is one."""
        began = perf_counter()
        with collector_waits():
            batch = next(batches, None)
        run.seconds += perf_counter() - began
        return batch


class Strips:
    """What native code knows of one program."""

    def __init__(self, blocks: Sequence[RunnableBlock], devices: Collection[str]) -> None:
        self._blocks = blocks
        self._is_on_host = set(devices) <= {"cpu"}
        #: The forms of its blocks, by the purpose of runs.
        self._forms: dict[Hashable, StripForms] = {}
        #: The backward halves, made and looked up by `penstock.autodiff`.
        self.halves: dict[Hashable, Any] = {}

    def find(self, planner: object, purpose: Hashable) -> Stripped | None:
        """How to run what a planner is about to plan; None where it goes the usual way."""
        if not self._is_on_host or Fusion.mode == "never" or is_distinct_always():
            return None
        if not gives_records(planner):
            return None
        forms = self._forms.get(purpose)
        if forms is None:
            forms = self._forms.setdefault(purpose, StripForms(planner.decoder, self._blocks))
        has_code = bool(forms.known.codes)
        loaded = library() if has_code else None
        return None if has_code and loaded is None else Stripped(planner, forms, loaded)
