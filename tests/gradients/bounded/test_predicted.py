"""`auto` for a program that has run before: which way it takes, and that each leads to the same
gradients.
"""

from __future__ import annotations

from itertools import count

import pytest
import torch

import penstock as ps
from penstock.autodiff.bounded import predicting
from penstock.autodiff.bounded import program_runs as runs_module
from penstock.autodiff.bounded.predicting import Fitting, History, Predicted, Saved, Way, find_ways
from penstock.autodiff.bounded.trying import Again, Trials
from penstock.autodiff.page import Page
from penstock.run.memory.costs import Bandwidth
from penstock.run.runner import Runner
from penstock.run.windows import loop_windows
from tests.fused import fused_without_compiler
from tests.gradients.bounded.runs import bounded_runs

pytestmark = pytest.mark.usefixtures("interpreted_loops")

MIB = 1 << 20
KEPT = Saved(600 * MIB, 200 * MIB, 100, torch.device("cpu"))


def chosen(budget, bandwidth, seconds=1.0):
    return find_ways(History(KEPT, None, seconds), budget, bandwidth)[0].name


def test_the_way_follows_from_budget_and_bandwidth():
    fast, slow = Bandwidth(1e12, 1e12, 0.0), Bandwidth(1e7, 1e7, 0.0)
    assert chosen(600 * MIB, slow) == "all is kept"
    assert chosen(599 * MIB, fast) == "all is swapped"
    assert chosen(400 * MIB, slow) == "rows are kept"
    assert chosen(100 * MIB, slow) == "segments run again"
    middle = Bandwidth(2e8, 2e8, 0.0)  # rows hide beside launches, the rest does not
    assert chosen(100 * MIB, middle) == "rows are swapped"


def test_time_in_which_launches_wait_for_copies_is_no_time_of_launches(monkeypatch):
    """Otherwise swapping seems to cost nothing: copies hide beside the time that they take."""

    class Clock:
        now = 0.0

        def __init__(self, device):
            self.began, self.ended = Clock.now, None

        def stop(self):
            self.ended = Clock.now

        def seconds(self):
            return self.ended - self.began

    monkeypatch.setattr(predicting, "DeviceTimer", Clock)
    watch = predicting.Stopwatch(torch.device("cuda:0"))
    Clock.now = 30.0
    watch.leave_out_waiting(100)
    Clock.now = 500.0
    watch.leave_out_waiting(200)
    watch.stop(400)
    assert watch.seconds() == 4 * 30.0
    unhindered = predicting.Stopwatch(torch.device("cuda:0"))
    Clock.now = 507.0
    unhindered.stop(400)
    assert unhindered.seconds() == 7.0


def test_copies_cost_the_host_something_though_they_hide():
    assert chosen(400 * MIB, Bandwidth(1e12, 1e12, 0.1)) == "rows are kept"


@ps.function
def gated(xs, w):
    """A cell with gates that are computed again."""

    def step(h, c, x):
        i, f, g = ((x + h) @ w).chunk(3, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.tanh(c), c

    h = c = xs[0] * 0
    for x in xs:
        h, c = step(h, c, x)
    return h


@pytest.fixture
def w():
    return torch.randn(6, 18, generator=torch.Generator().manual_seed(0)).mul_(0.4).requires_grad_()


def sequences(*lengths):
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(length, 6, generator=draw).requires_grad_() for length in lengths]


def train(w, policy="keep", budget=None):
    """The strategy of a call, its gradients, and what a profile says."""
    given = sequences(7, 4, 9)
    with bounded_runs() as runs, ps.profile() as profile, ps.memory(policy, budget=budget):
        rows = gated.map(given, ps.shared(w))
    loss = sum((row * torch.arange(1.0, 7.0)).sum() for row in rows)
    found = torch.autograd.grad(loss, [*given, w])
    return runs[0].strategy if runs else None, found, profile.explain()


WAYS = [
    Way("all is kept", False, True, 0.0),
    Way("rows are kept", True, True, 0.0),
    Way("all is swapped", False, False, 0.0),
    Way("rows are swapped", True, False, 0.0),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
@pytest.mark.parametrize("is_fused", [False, True])
def test_every_way_gives_the_gradients(way, is_fused, w, monkeypatch):
    expected = train(w)[1]
    train(w, "auto", "1MiB")  # from now on something is known
    monkeypatch.setattr(runs_module, "find_ways", lambda *facts: [way])
    budget = "1MiB" if way.is_kept else 300
    with loop_windows(False), fused_without_compiler() if is_fused else ps.profile():
        for _ in range(2):
            strategy, found, text = train(w, "auto", budget)
            assert way.name in text
            assert (strategy.store.sent > 0) == (not way.is_kept)
            torch.testing.assert_close(found, expected)
    assert type(strategy) is (Fitting if way.is_kept else Predicted)


def test_pages_of_rows_take_a_fraction(w, monkeypatch):
    train(w, "auto", "1MiB")
    sizes = []
    for way in WAYS[2:]:
        monkeypatch.setattr(runs_module, "find_ways", lambda *facts, way=way: [way])
        sizes.append(train(w, "auto", 300)[0].store.taken)
    assert sizes[1] < 0.6 * sizes[0]


def test_a_longer_call_than_was_predicted_stays_inside_the_budget(w, monkeypatch):
    train(w, "auto", "1MiB")
    monkeypatch.setattr(runs_module, "find_ways", lambda *facts: WAYS[:1])
    strategy, found, _ = train(w, "auto", 2000)
    assert strategy.store.sent
    assert strategy.store.peak < 2000 + 1000
    torch.testing.assert_close(found, train(w)[1])


def test_a_plan_with_inputs_beyond_the_budget_is_not_captured(w, monkeypatch):
    """A captured plan has a copy of its inputs, which may be more than there is room for."""
    monkeypatch.setattr(runs_module, "find_ways", lambda *facts: [WAYS[0]])

    def last_run():
        for _ in range(3):
            with bounded_runs() as runs, ps.memory("auto", budget="1MiB"):
                gated.map(sequences(7, 4, 9), ps.shared(w))
        assert type(runs[0].strategy) is Fitting
        return runs[0]

    assert last_run().may_be_captured
    monkeypatch.setattr(runs_module, "input_bytes", lambda columns: 2 * MIB)
    assert not last_run().may_be_captured


def timed_ways():
    return [
        Way("rows are swapped", True, False, 0.1),
        Way("all is swapped", False, False, 0.2),
        Way("segments run again", False, False, 0.3),
        Way("too slow to be tried", False, False, 99.0),
    ]


def test_ways_that_may_be_the_fastest_are_tried_and_the_best_is_taken():
    trials, ways, taken = Trials(), timed_ways(), []
    seconds = {"rows are swapped": 3.0, "all is swapped": 1.0, "segments run again": 2.0}
    for call in range(8):
        first, *others = trials.order("some", ways, 1.0)
        assert {first.name, *(way.name for way in others)} == {way.name for way in ways}
        taken.append(first.name)
        trials.note("some", first, seconds[first.name] + (5 if call % 2 else 0))
    tried = ["rows are swapped", "all is swapped", "segments run again"]
    assert taken == [name for name in tried for _ in "12"] + ["all is swapped"] * 2
    assert trials.order("others", ways, 1.0)[0].name == "rows are swapped"


def test_it_is_told_why_a_way_is_taken_that_is_not_predicted_to_be_the_fastest():
    trials, ways, told = Trials(), timed_ways()[:2], []
    for _ in range(5):
        ordered = trials.order("some", ways, 1.0)
        told.append(trials.reason("some", ordered))
        trials.note("some", ordered[0], 0.003 if ordered[0] is ways[0] else 0.001)
    tried = " It is being tried, as predictions may be wrong."
    took = " Calls took, forward and backward:"
    assert told == [
        tried,
        f"{tried}{took} rows are swapped 3 ms.",
        f"{tried}{took} rows are swapped 3 ms.",
        f"{tried}{took} all is swapped 1 ms, rows are swapped 3 ms.",
        f"{took} all is swapped 1 ms, rows are swapped 3 ms.",
    ]
    assert not trials.reason("some", [Way("all is kept", False, True, 0.0), *ways])


def test_nothing_is_tried_where_all_fits():
    trials = Trials()
    ways = [Way("all is kept", False, True, 0.0), *timed_ways()]
    for _ in range(5):
        assert trials.order("some", ways, 1.0)[0].name == "all is kept"
        trials.note("some", ways[0], 9.0)


def test_calls_try_the_ways_and_settle(w, monkeypatch):
    """Whatever is taken, gradients are the same and the budget holds."""
    expected = train(w)[1]
    train(w, "auto", "1MiB")
    near = [way._replace(seconds=0.0) for way in timed_ways()[:3]]
    monkeypatch.setattr(runs_module, "find_ways", lambda *facts: [*near, timed_ways()[3]])
    noted = []
    note = Trials.note

    def counted(self, key, way, seconds):
        noted.append(way.name)
        note(self, key, way, seconds)

    monkeypatch.setattr(Trials, "note", counted)
    for _ in range(9):
        strategy, found, text = train(w, "auto", 600)
        assert strategy.ways[0].name in text or type(strategy) is Again
        assert "It is being tried" in text or "Calls took, forward and backward" in text
        assert strategy.store.peak < 600 + 1000
        torch.testing.assert_close(found, expected)
    assert set(noted) == {way.name for way in near}
    assert min(map(noted.count, set(noted))) >= 2


def fitting(w, monkeypatch):
    """From now on calls of `train` keep their pages with the tape."""
    train(w, "auto", "1MiB")
    monkeypatch.setattr(runs_module, "find_ways", lambda *facts: WAYS[:1])
    with loop_windows(False):
        train(w, "auto", "1MiB")
        strategy, found, _ = train(w, "auto", "1MiB")
    assert type(strategy) is Fitting
    return found


@pytest.mark.parametrize("at", [4, 9])
def test_pages_that_were_to_stay_leave_where_an_allocation_fails(at, w, monkeypatch):
    """The budget may be larger than the memory that there is."""
    expected = fitting(w, monkeypatch)
    original, calls = Runner._step, count(1)

    def step(self, item):
        if next(calls) == at:
            raise torch.OutOfMemoryError("Tried to allocate 8 GiB")
        return original(self, item)

    monkeypatch.setattr(Runner, "_step", step)
    with loop_windows(False):
        strategy, found, text = train(w, "auto", "1MiB")
    assert type(strategy) is Fitting
    assert strategy.store.sent
    assert "An allocation failed, and" in text
    assert "swapped out to make room" in text
    assert not strategy.pages
    assert not strategy.store.bytes
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("at", [1, 3])
def test_pages_that_were_to_stay_leave_where_backward_has_no_room(at, w, monkeypatch):
    expected = fitting(w, monkeypatch)
    original, calls = Page.go_back, count(1)

    def go_back(self, *arguments):
        if next(calls) == at:
            raise torch.OutOfMemoryError("Tried to allocate 8 GiB")
        return original(self, *arguments)

    monkeypatch.setattr(Page, "go_back", go_back)
    with loop_windows(False):
        strategy, found, _ = train(w, "auto", "1MiB")
    assert type(strategy) is Fitting
    assert strategy.store.sent
    assert not strategy.pages
    assert not strategy.store.bytes
    assert all(map(torch.equal, found, expected))
