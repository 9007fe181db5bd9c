"""Runs of programs that follow a memory policy: what one call has saved helps `auto` to choose what
becomes of the pages of the next.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import Any

from penstock.autodiff.bounded.choosing import Choosing
from penstock.autodiff.bounded.graphed import input_bytes
from penstock.autodiff.bounded.predicting import Fitting, History, Predicted, Stopwatch, find_ways
from penstock.autodiff.bounded.runs import Bounded
from penstock.autodiff.bounded.trying import Again, Trials
from penstock.autodiff.page import Page
from penstock.autodiff.taped_run import TapedRun
from penstock.run.engine import Columns
from penstock.run.kept_plans import KeptPlan
from penstock.run.memory.costs import bandwidth_of
from penstock.run.memory.policy import Policy


class BoundedRun(Bounded, TapedRun):
    """A run of a program that follows a memory policy."""

    #: A graph would hold all that it saves.
    may_be_captured = False

    def __init__(self, *args: Any, policy: Policy, **kwargs: Any) -> None:
        super().__init__(*args, policy=policy, **kwargs)
        #: None where the policy does not ask what earlier calls have saved.
        self.watch: Stopwatch | None = None
        #: The same for the first backward pass, of a call whose way is being tried.
        self.watch_back: Stopwatch | None = None
        #: What calls that saved about as much are known by, where ways are tried.
        self.trial: Hashable = None
        if policy.kind == "auto" and policy.budget is not None:
            self._predict(policy, policy.budget)

    @property
    def division(self) -> Hashable:  # type: ignore[override]
        """Bytes that a page could take, and the launches in pieces, if there are any."""
        return (self.strategy.share, *self.divided) if self.divided else None

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
            reason = ""
            if history.saved.device.type == "cpu":
                self.trial = budget, history.saved.everything.bit_length()
                ways = history.trials.order(self.trial, ways, history.seconds)
                reason = history.trials.reason(self.trial, ways)
            kind = Again if ways[0].name == "segments run again" else Predicted
            self.strategy = kind(policy, history, ways, reason)
            self.saves_rows = ways[0].saves_rows
        self.strategy.store.before_waiting = self.watch.leave_out_waiting

    def _run_again(self, plan: KeptPlan, columns: Columns) -> None:
        strategy = self.strategy
        if isinstance(strategy, Predicted) and strategy.fits(plan.saved.get(self.saves_rows)):
            self.strategy = strategy.fitting()
            self.may_be_captured = input_bytes(columns) <= (strategy.policy.budget or 0)
        super()._run_again(plan, columns)

    def finish(self) -> None:
        """Let go of what backward does not need."""
        if self.watch is not None:
            self.watch.stop(self.strategy.store.taken)
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
                trials = Trials() if history is None else history.trials
                self.executable.saved[self.wires] = History(saved, watch, seconds, trials)
        elif isinstance(strategy, Again):
            assert history is not None
            history.watch = watch
            history.learn(strategy.saved_bytes, saves_rows=False)
        elif isinstance(strategy, Predicted) and not isinstance(strategy, Fitting):
            assert history is not None
            history.watch = watch
            history.learn(strategy.store.taken, saves_rows=self.saves_rows)
            if self.kept is not None and not self._has_shared():
                self.kept.saved[self.saves_rows] = strategy.store.taken

    def goes_back(self) -> None:
        """A backward pass begins."""
        if self.trial is not None:
            self.watch_back = Stopwatch(None)

    def rest(self) -> None:
        """A backward pass is over, or has failed."""
        super().rest()
        strategy, watch, back = self.strategy, self.watch, self.watch_back
        if back is not None and watch is not None and isinstance(strategy, Predicted | Again):
            back.stop(0)
            forward, seconds = watch.seconds(), back.seconds()
            if forward is not None and seconds is not None:
                strategy.history.trials.note(self.trial, strategy.ways[0], forward + seconds)
        self.trial = self.watch_back = None

    def _has_shared(self) -> bool:
        """Whether pages have rows for distinct numbers only: others would take more."""
        pages = (entry for entry in self.tape.entries if isinstance(entry, Page))
        return any(page.distinct is not None for page in pages)
