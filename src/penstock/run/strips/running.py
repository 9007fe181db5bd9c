"""Plans on a CPU that are run by native code: which ones, and how planner and runner take turns.

Native code is used where the native planner has planned, and where blocks have been compiled: what
it saves is the Python around launches. A plan that may come again is prepared by Python once, and
run natively when it has come; a run that somebody looks at goes the usual way.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from penstock.plan.linked import Linked
from penstock.plan.native.decode import Decoder, Records
from penstock.plan.planners import gives_records, note_run_plainly, plans_natively
from penstock.plan.schedule import Chunk, Instruction
from penstock.run.arenas import merged
from penstock.run.blocks import RunnableBlock
from penstock.run.collector import collector_waits
from penstock.run.distinct import is_distinct_always
from penstock.run.fused.setting import Fusion
from penstock.run.strips.batch import Batch, carry_out_batch
from penstock.run.strips.forms import StripForms
from penstock.run.strips.library import Library, library

if TYPE_CHECKING:
    from penstock.plan.native.machine import NativeMachine
    from penstock.run.engine import Run
    from penstock.run.kept_plans import KeptPlan
    from penstock.run.prepared import PreparedWindow


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
            self._carry_out_batch(run, batch)
            batch = self._plan(run, batches)

    def _carry_out_batch(self, run: Run, batch: Records | Instruction) -> None:
        is_kept = run.keeping is not None and run.keeping.is_worth_it
        if not isinstance(batch, Records):
            self._prepare(run, [batch], None)
        elif is_kept or self.library is None or batch.given:
            window = list(self.machine.instructions(batch))
            self._prepare(run, window, None if batch.given else batch)
        else:
            run._grow(merged(Chunk(*chunk[1:]) for chunk in batch.chunks))
            by_python = partial(self._by_python, run)
            carry_out_batch(run, batch, self.forms, self.library, by_python)

    def _by_python(self, run: Run, batch: Batch, number: int) -> None:
        """Carry out one record as an instruction."""
        item, instances = batch.instruction(number)
        if instances is not None:
            self.machine.launched.append(instances)
        for step in run._carry_out_prepared([item])[0].steps:
            self.forms.learn(run, step)

    def _prepare(self, run: Run, window: list[Instruction], records: Records | None) -> None:
        """Carry out instructions as Python does it, and keep them if they may come again."""
        prepared, _ = run._carry_out_prepared(window)
        if run.keeping is not None:
            run.keeping.add(replace(prepared, records=records))
        for step in prepared.steps:
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
        #: Reads the records of its plans, once there were some.
        self._decoder: Decoder | None = None
        #: The forms of its blocks, by the purpose of runs.
        self._forms: dict[Hashable, StripForms] = {}
        #: The backward halves, made and looked up by `penstock.autodiff`.
        self.halves: dict[Hashable, Any] = {}

    def _may_run(self) -> bool:
        """Whether native code may run what it has planned."""
        return self._is_on_host and Fusion.mode != "never" and not is_distinct_always()

    def would_do_better(self, plan: KeptPlan, linked: Linked) -> bool:
        """Whether a plan that is to be run again is made anew instead: the plain machine has made
        it, and native code, which is here by now, runs only its own.
        """
        if not plan.is_plain or not self._may_run():
            return False
        note_run_plainly(linked, plan.launches)
        return plans_natively(linked)

    def carry_out_again(self, run: Run, window: PreparedWindow) -> bool:
        """Carry out a window of a kept plan; False where it goes the usual way."""
        forms = self._forms_for(run.purpose)
        if window.records is None or forms is None or is_distinct_always():
            return False
        loaded = library() if forms.known.codes else None
        if loaded is None:
            return False

        def by_python(batch: Batch, number: int) -> None:
            step = window.steps[number]
            run._run_steps((step,))
            forms.learn(run, step)

        run._grow(window.growth)
        carry_out_batch(run, window.records, forms, loaded, by_python)
        return True

    def learn(self, run: Run, window: PreparedWindow) -> None:
        """A window of a kept plan went the usual way: some of its launches may be compiled now."""
        forms = None if window.records is None else self._forms_for(run.purpose)
        if forms is not None:
            for step in window.steps:
                forms.learn(run, step)

    def _forms_for(self, purpose: Hashable) -> StripForms | None:
        """The forms for runs of a purpose; None where nothing was planned in records."""
        forms = self._forms.get(purpose)
        if forms is None and self._decoder is not None:
            made = StripForms(self._decoder, self._blocks)
            forms = self._forms.setdefault(purpose, made)
        return forms

    def find(self, planner: object, purpose: Hashable) -> Stripped | None:
        """How to run what a planner is about to plan; None where it goes the usual way."""
        if not self._may_run() or not gives_records(planner):
            return None
        self._decoder = planner.decoder
        forms = self._forms_for(purpose)
        assert forms is not None
        has_code = bool(forms.known.codes)
        loaded = library() if has_code else None
        return None if has_code and loaded is None else Stripped(planner, forms, loaded)
