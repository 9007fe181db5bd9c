"""Runs that follow a memory policy: every step is told to a strategy, and segments run again.

Without a policy none of this is there: such runs are of another class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import RLock
from time import perf_counter
from typing import Any, TypeGuard

import torch

from penstock.autodiff.bounded.choosing import strategy_for
from penstock.autodiff.bounded.dividing import find_pieces, page_bytes
from penstock.autodiff.bounded.folding import Values, gathered
from penstock.autodiff.bounded.graphed import graph_of, may_be_graphed
from penstock.autodiff.bounded.layouts import Layout, layout_of
from penstock.autodiff.bounded.ledger import Rows
from penstock.autodiff.bounded.segments import Segment, SegmentStep
from penstock.autodiff.forms import Form
from penstock.autodiff.page import Page
from penstock.autodiff.tape import Entry, Tape, Taping
from penstock.calls.autocast import OFF, autocast_as
from penstock.plan.schedule import Array, Chunk, Shared, Span
from penstock.run.arenas import Arena
from penstock.run.distinct import find_distinct
from penstock.run.launch_graphs import device_of
from penstock.run.memory.policy import Policy
from penstock.run.memory.read_ahead import ReadAhead
from penstock.run.memory.room import with_room
from penstock.run.prepared import Prepared, PreparedLaunch, PreparedReceipt, is_repeatable
from penstock.run.recording import building_time


class Bounded(Taping):
    """A run that leaves a tape inside bounds; comes before another kind of taped run."""

    goes_straight = False
    #: Whether wide launches may run in pieces.
    divides = True

    def __init__(self, *args: Any, policy: Policy, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.policy, self.strategy = policy, strategy_for(policy)
        #: For blocks that were looked at what they save for each row.
        self.row_bytes: dict[int, int] = {}
        #: The places on the tape where launches begin that run in pieces.
        self.divided: list[int] = []
        #: The launch that was found to fit with its distinct rows alone, and how many these are.
        self.shared: tuple[PreparedLaunch, int] | None = None
        #: How arenas were made up when the run was over.
        self.layouts: list[Layout] | None = None
        #: Arenas in which segments run again, during a backward pass.
        self.arenas_again: list[Arena] | None = None
        #: Held by the backward pass at work: what it has brought belongs to the run. The same
        #: thread may begin another inside of it, as torch's engine does for a graph in a graph.
        self.passes = RLock()
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
        pieces = self._pieces(step)
        if len(pieces) == 1:
            return self._told_step(step)
        self.divided.append(len(self.tape.entries))
        for piece in pieces:
            self._told_step(piece)
        return None

    def _pieces(self, step: Prepared) -> Sequence[Prepared]:
        """What a step is run as."""
        share = self.strategy.share
        if share is None or not self.divides or not isinstance(step, PreparedLaunch):
            return (step,)
        pieces = find_pieces(self, step, share)
        return (step,) if len(pieces) > 1 and self._fits_shared(step) else pieces

    def _fits_shared(self, step: PreparedLaunch) -> bool:
        """Whether a launch does its distinct rows only, and these fit into the budget."""
        rows = find_distinct(self, step) if self.may_share(step) else None
        self.shared = None if rows is None else (step, rows.count)
        return rows is not None and page_bytes(self, step) <= (self.strategy.policy.budget or 0)

    def rows_saved(self, step: PreparedLaunch) -> int:
        """The rows that the page of a launch will have, at most."""
        is_known = self.shared is not None and self.shared[0] is step
        return self.shared[1] if is_known else step.launch.rows  # type: ignore[index]

    def _bind_ahead(self, step: PreparedLaunch) -> None:
        share = self.strategy.share
        whole = share is None or not self.divides or self.may_share(step)
        for piece in (step,) if whole else find_pieces(self, step, share):  # type: ignore[arg-type]
            super()._bind_ahead(piece)

    def _told_step(self, step: Prepared) -> list[Array] | None:
        self.strategy.before(self, step)
        count, built, began = len(self.tape.entries), building_time.seconds, perf_counter()
        answer = self._step_or_relieve(step)
        if len(self.tape.entries) > count:
            seconds = perf_counter() - began - (building_time.seconds - built)
            self.strategy.after(self, step, self.tape.entries[-1], seconds)
        return answer

    def _step_with_room(self, step: Prepared, error: Exception) -> list[Array] | None:
        raise error  # room was made for each piece as far as there was some

    def _step_or_relieve(self, step: Prepared) -> list[Array] | None:
        """Run a step; where an allocation fails, give back what is kept for later calls, let saved
        values leave, and try again.
        """
        run = partial(super()._step, step)
        return with_room(run, self.relieve) if is_repeatable(step) else run()

    def _grow_arena(self, chunk: Chunk) -> None:
        with_room(partial(super()._grow_arena, chunk), self.relieve)

    def relieve(self) -> int:
        """Let saved values leave, as an allocation has failed; the bytes that did."""
        return self.strategy.relieve(self)

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

    def holds(self, entry: Entry) -> TypeGuard[Page]:
        """Whether saved values are with a page: the store has counted those that it has lent."""
        return isinstance(entry, Page) and entry not in self.strategy.pages

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

    def goes_back(self) -> None:
        """A backward pass begins."""

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
    page.distinct = made.distinct
    page.saved, page.versions, page.is_apart = made.saved, made.versions, made.is_apart
