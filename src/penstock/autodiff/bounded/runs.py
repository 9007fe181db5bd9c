"""Runs that follow a memory policy: every step is told to a strategy, and segments run again.

Without a policy none of this is there: such runs are of another class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from time import perf_counter
from typing import Any, NamedTuple

import torch

from penstock.autodiff.bounded.choosing import Choosing, strategy_for
from penstock.autodiff.bounded.folding import Values, gathered
from penstock.autodiff.bounded.graphed import graph_of, input_bytes, may_be_graphed
from penstock.autodiff.bounded.ledger import Rows, lent_ranges
from penstock.autodiff.bounded.predicting import Fitting, History, Predicted, Stopwatch, find_ways
from penstock.autodiff.bounded.segments import Segment, SegmentStep
from penstock.autodiff.forms import Form
from penstock.autodiff.page import Page
from penstock.autodiff.tape import Tape, Taping
from penstock.autodiff.taped_run import TapedRun
from penstock.autodiff.versions import check_version, version_of
from penstock.calls.autocast import OFF, autocast_as
from penstock.plan.schedule import Array, Kind, Shared, Span
from penstock.run.arenas import Arena
from penstock.run.engine import Columns
from penstock.run.kept_plans import KeptPlan
from penstock.run.launch_graphs import device_of
from penstock.run.memory.costs import bandwidth_of
from penstock.run.memory.exhaustion import is_out_of_memory
from penstock.run.memory.lasting import give_back_lasting
from penstock.run.memory.policy import Policy
from penstock.run.memory.read_ahead import ReadAhead
from penstock.run.prepared import Prepared, PreparedLaunch, PreparedReceipt, is_repeatable
from penstock.run.recording import building_time


class Layout(NamedTuple):
    """How an arena is made up: inputs as they are, and how long other chunks are."""

    kind: Kind
    starts: list[int]
    chunks: list[torch.Tensor | int]
    #: The version of each input.
    versions: list[int]
    is_held: bool

    def build(self, number: int) -> Arena:
        """An arena like it, with values in inputs only."""
        arena = Arena(self.kind, number)
        for start, chunk, version in zip(self.starts, self.chunks, self.versions, strict=True):
            if isinstance(chunk, int):
                arena.grow(start, chunk)
            else:
                check_version(chunk, version)
                arena.install(start, chunk)
        return arena


def layout_of(arena: Arena) -> Layout:
    """How an arena is made up."""
    if arena.is_held:
        return Layout(arena.kind, [], [], [], True)
    lent = {start for start, _ in lent_ranges(arena)}
    chunks: list[torch.Tensor | int] = [
        chunk if start in lent else len(chunk)
        for start, chunk in zip(arena.starts, arena.chunks, strict=True)
    ]
    versions = [0 if isinstance(chunk, int) else version_of(chunk) for chunk in chunks]
    return Layout(arena.kind, list(arena.starts), chunks, versions, False)


class Bounded(Taping):
    """A run that leaves a tape inside bounds; comes before another kind of taped run."""

    goes_straight = False
    #: What a page takes would depend on the numbers that rows read.
    shares_rows = False

    def __init__(self, *args: Any, policy: Policy, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.strategy = strategy_for(policy)
        #: How arenas were made up when the run was over.
        self.layouts: list[Layout] | None = None
        #: Arenas in which segments run again, during a backward pass.
        self.arenas_again: list[Arena] | None = None
        #: For each device what brings rows of the host there.
        self.ahead: dict[torch.device, ReadAhead] = {}

    def is_own(self, arena: int) -> bool:
        """Whether nobody but this run writes to an arena."""
        return True

    @property
    def own_arenas(self) -> Iterator[Arena]:
        """The arenas that nobody else writes to."""
        return (arena for number, arena in enumerate(self.arenas) if self.is_own(number))

    def _step(self, step: Prepared) -> list[Array] | None:
        if isinstance(step, PreparedReceipt):
            super()._step(step)
            self.strategy.received(self, step.copy.target)
            return None
        self.strategy.before(self, step)
        count, built, began = len(self.tape.entries), building_time.seconds, perf_counter()
        answer = self._step_or_relieve(step)
        if len(self.tape.entries) > count:
            seconds = perf_counter() - began - (building_time.seconds - built)
            self.strategy.after(self, step, self.tape.entries[-1], seconds)
        return answer

    def _step_or_relieve(self, step: Prepared) -> list[Array] | None:
        """Run a step; where an allocation fails, give back what is kept for later calls, let saved
        values leave, and try again.
        """
        while True:
            try:
                return super()._step(step)
            except Exception as error:
                if not is_out_of_memory(error) or not is_repeatable(step):
                    raise
                if not give_back_lasting() and not self.strategy.store.shrink():
                    raise

    def _run_form(
        self, form: Form, page: Page, tensors: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        """The same as a CUDA graph, where it is met often: a plan whose pages leave is none."""
        page.is_graphed = self.recorder is None and may_be_graphed(form, page, tensors)
        graph = graph_of(form, page, tensors) if page.is_graphed else None
        page.ahead = self._read_ahead(tensors) if page.is_graphed else None
        if graph is None:
            return super()._run_form(form, page, tensors)
        assert page.ahead is not None
        found, count = graph.run(tensors, page.ahead.fetch), form.output_count
        page.layout, saved = graph.keep(found, count)
        page.save([self._owned(values) for values in saved])
        targets = page.launch.targets
        return [
            values.clone() if isinstance(target, Span) and target.is_whole else values
            for values, target in zip(found[:count], targets, strict=True)
        ]

    def _read_ahead(self, tensors: Sequence[torch.Tensor]) -> ReadAhead | None:
        """What brings rows to the device of a launch."""
        device = device_of(tensors)
        if device is None:
            return None
        if device not in self.ahead:
            self.ahead[device] = ReadAhead(device)
        return self.ahead[device]

    def _stop_reading(self) -> None:
        """Rows of the host are the caller's again."""
        for ahead in self.ahead.values():
            ahead.close()

    def saved_bytes(self) -> int:
        """Bytes that are held for a backward pass."""
        return super().saved_bytes() + self.strategy.store.bytes

    def end(self) -> None:
        """No more steps come."""
        if self.layouts is None:
            self.layouts = list(map(layout_of, self.arenas))
            self._stop_reading()
            self.strategy.finish(self)
            if self.recorder is not None and (text := self.strategy.explain()):
                self.recorder.record.notes.append(text)

    # ---- running again ---------------------------------------------------------------------------

    def run_again(self, segments: Sequence[Segment], values: Values, *, keeps_pages: bool) -> None:
        """Run segments that follow each other from the rows that the first starts from, and those
        of others that none before them makes: their pages may get their values again.
        """
        with self._arenas_again(), torch.no_grad(), autocast_as(OFF):
            for segment in segments:
                self._check_uniforms(segment)
                for noted in segment.steps:
                    self._put_back(noted, values)
                    if noted.is_repeatable:
                        super()._step(noted.step)
                        made = self.tape.entries.pop()
                        if keeps_pages:
                            _give(made, noted.page)

    def _put_back(self, noted: SegmentStep, values: Values) -> None:
        for rows in noted.rows:
            if id(rows) in values:
                rows.put_back(self.arenas[rows.arena], values[id(rows)])

    def rows_again(self, rows: Rows) -> torch.Tensor:
        """Rows that segments which ran again have made."""
        with self._arenas_again():
            return gathered(self, rows)

    @contextmanager
    def _arenas_again(self) -> Iterator[None]:
        """Other arenas, and another tape, while segments run again."""
        if self.arenas_again is None:
            layouts = self.layouts or list(map(layout_of, self.arenas))
            self.arenas_again = [
                layout.build(n) if self.is_own(n) else Arena(layout.kind, n)
                for n, layout in enumerate(layouts)
            ]
        kept = self.arenas, self.tape
        self.arenas, self.tape = self.arenas_again, Tape()
        try:
            yield
        finally:
            self.arenas, self.tape = kept

    def _check_uniforms(self, segment: Segment) -> None:
        """Raise torch's error if a uniform value has been changed since."""
        launches = (item.step.launch for item in segment.steps if type(item.step) is PreparedLaunch)
        operands = (operand for launch in launches for operand in launch.operands)
        for wire in {operand.wire for operand in operands if isinstance(operand, Shared)}:
            self.read_uniform(wire)

    def step_aside(self) -> None:
        """Let saved values leave for a graph of torch's own."""
        self.strategy.step_aside()

    def rest(self) -> None:
        """A backward pass is over, or has failed."""
        self.arenas_again, self.mirrors = None, {}
        self._stop_reading()
        self.strategy.rest()


def _give(made: object, page: Page | None) -> None:
    """A page gets what its launch has left now."""
    if page is None:
        return
    assert isinstance(made, Page)
    page.form, page.graph, page.sizes = made.form, made.graph, made.sizes
    page.layout, page.is_graphed, page.ahead = made.layout, made.is_graphed, made.ahead
    page.saved, page.versions, page.is_apart = made.saved, made.versions, made.is_apart


class BoundedRun(Bounded, TapedRun):
    """A run of a program that follows a memory policy."""

    #: A graph would hold all that it saves.
    may_be_captured = False

    def __init__(self, *args: Any, policy: Policy, **kwargs: Any) -> None:
        super().__init__(*args, policy=policy, **kwargs)
        #: None where the policy does not ask what earlier calls have saved.
        self.watch: Stopwatch | None = None
        if policy.kind == "auto" and policy.budget is not None:
            self._predict(policy, policy.budget)

    @property
    def history(self) -> History | None:
        """What earlier calls have saved."""
        known: History | None = self.executable.saved.get(self.wires)
        return known

    def _predict(self, policy: Policy, budget: int) -> None:
        """Choose by what an earlier call has saved."""
        devices = (values.device for values in self.captures if values.is_cuda)
        self.watch = Stopwatch(next(devices, None))
        history = self.history
        if history is not None and history.look():
            ways = find_ways(history, budget, bandwidth_of(history.saved.device))
            if ways[0].name != "segments run again":
                self.strategy = Predicted(policy, history, ways)
                self.saves_rows = ways[0].saves_rows

    def _run_again(self, plan: KeptPlan, columns: Columns) -> None:
        strategy = self.strategy
        if isinstance(strategy, Predicted) and strategy.fits(plan.saved.get(self.saves_rows)):
            self.strategy = Fitting(strategy.policy, strategy.history, strategy.ways)
            self.may_be_captured = input_bytes(columns) <= (strategy.policy.budget or 0)
        super()._run_again(plan, columns)

    def finish(self) -> None:
        """Let go of what backward does not need."""
        if self.watch is not None:
            self.watch.stop()
            self._learn(self.watch)
        self.end()
        super().finish()

    def _learn(self, watch: Stopwatch) -> None:
        """Tell later calls what this one has saved."""
        strategy, history = self.strategy, self.history
        if isinstance(strategy, Choosing):
            saved = strategy.saved
            if saved is not None:
                seconds = inf
                if history is not None and saved.everything:
                    times = saved.everything / max(history.saved.everything, 1)
                    seconds = times * history.seconds
                self.executable.saved[self.wires] = History(saved, watch, seconds)
        elif isinstance(strategy, Predicted) and not isinstance(strategy, Fitting):
            assert history is not None
            history.watch = watch
            history.learn(strategy.store.taken, saves_rows=self.saves_rows)
            if self.kept is not None:
                self.kept.saved[self.saves_rows] = strategy.store.taken
