"""What a tape holds, and that it goes when it should; what backward costs as loops grow."""

import gc
import weakref

import pytest
import torch

import penstock as ps
from penstock.autodiff import function as autodiff_function
from penstock.autodiff.page import Page

pytestmark = pytest.mark.usefixtures("interpreted_loops")


@pytest.fixture
def runs(monkeypatch):
    """Weak references to the runs that leave a tape."""
    made = []

    class Watched(autodiff_function.TapedRun):
        def finish(self):
            super().finish()
            made.append(weakref.ref(self))

    monkeypatch.setattr(autodiff_function, "TapedRun", Watched)
    return made


@ps.function
def recurrent(x, w):
    """Reads x[t] at every step."""

    def step(t, h):
        return t + 1, torch.tanh(h @ w + x[t])

    return ps.while_loop(lambda t, h: t < x.shape[0], step, (0, x[0] * 0))[1]


def pages(run):
    return [entry for entry in run().tape.entries if isinstance(entry, Page)]


def saved_bytes(run):
    """Memory that pages hold, each piece of it once; the caller's own tensors left out."""
    storages = {}
    for page in pages(run):
        for values in page.saved:
            storages[values.untyped_storage().data_ptr()] = values.untyped_storage().nbytes()
    return sum(storages.values())


def weights():
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).mul_(0.3).requires_grad_()


def test_no_tape_is_left_once_outputs_are_dropped(runs):
    w = weights()
    rows = recurrent.map([torch.randn(3, 8), torch.randn(2, 8)], [w] * 2)
    loss = sum(row.sum() for row in rows)
    loss.backward()
    del rows, loss
    gc.collect()
    assert [run() for run in runs] == [None]


def test_no_tape_is_left_if_backward_never_comes(runs):
    w = weights()
    recurrent.map([torch.randn(3, 8)], [w])
    gc.collect()
    assert [run() for run in runs] == [None]


def test_backward_releases_what_was_saved_though_outputs_live(runs):
    rows = recurrent.map([torch.randn(3, 8), torch.randn(2, 8)], [weights()] * 2)
    assert saved_bytes(runs[0]) > 0
    sum(row.sum() for row in rows).backward()
    assert saved_bytes(runs[0]) == 0


def test_retained_graphs_keep_what_was_saved(runs):
    rows = recurrent.map([torch.randn(3, 8)], [weights()])
    before = saved_bytes(runs[0])
    rows[0].sum().backward(retain_graph=True)
    assert saved_bytes(runs[0]) == before > 0


def test_a_run_keeps_no_arenas(runs):
    rows = recurrent.map([torch.randn(3, 8)], [weights()])
    assert runs[0]().arenas == []
    del rows


def cost(length, runs):
    """Launches of a training step, and the bytes saved for its backward half."""
    w = weights()
    xs = [torch.randn(length, 8).requires_grad_() for _ in range(2)]
    with ps.profile() as profile:
        rows = recurrent.map(xs, [w] * 2)
        saved = saved_bytes(runs[-1])
        sum(row.sum() for row in rows).backward()
    gradients = [launch for launch in profile.launches if launch.is_backward]
    gathered = sum(launch.gathered_bytes for launch in profile.launches)
    return len(profile.launches), len(gradients), saved, gathered


def test_reading_elements_in_a_loop_costs_as_much_as_the_loop_is_long(runs):
    short, long = cost(64, runs), cost(128, runs)
    for before, after in zip(short, long, strict=True):
        assert 0 < after <= 2.2 * before


def test_a_loop_saves_what_backward_reads_and_no_other_temporary(runs):
    @ps.function
    def f(x, n):
        def step(k, h):
            h = h + 1
            h = h * 2
            h = h - 3
            return k + 1, torch.tanh(h)

        return ps.while_loop(lambda k, h: k < n, step, (0, x))[1]

    rows = f.map(torch.randn(4, 16, requires_grad=True), [10] * 4)
    one_value = 4 * 16 * 4
    assert saved_bytes(runs[0]) <= 10 * one_value
    del rows
