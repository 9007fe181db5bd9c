"""Gradients that are differentiated again: what torch saves for them stays inside the budget."""

from __future__ import annotations

import threading
from weakref import ref

import pytest
import torch

import penstock as ps
from penstock.autodiff.bounded import reversal
from penstock.autodiff.bounded.graphs import BoundedGraph
from tests.gradients.bounded.accounting import LiveBytes
from tests.gradients.bounded.test_bounds import ROWS, VALUE, WIDTH, run

pytestmark = pytest.mark.usefixtures("interpreted_loops")

BUDGET = 12 * VALUE


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(WIDTH, WIDTH, generator=generator).mul_(0.1).requires_grad_()
    return torch.randn(ROWS, WIDTH, generator=generator).requires_grad_(), w


@pytest.fixture
def graphs(monkeypatch):
    """Those that are made."""
    found = []

    class Noted(BoundedGraph):
        def __init__(self, budget):
            super().__init__(budget)
            found.append(ref(self))

    monkeypatch.setattr(reversal, "BoundedGraph", Noted)
    return found


def first_order(tensors, policy, length):
    """Gradients as a graph, and the bytes that lived at most."""
    x, w = tensors
    with LiveBytes() as live:
        with ps.memory(policy, budget=None if policy == "keep" else BUDGET):
            loss = (run(x, length, w) * torch.arange(1.0, WIDTH + 1)).sum()
        found = torch.autograd.grad(loss, tensors, create_graph=True)
    return found, live.peak


def second_order(tensors, gradients):
    return torch.autograd.grad(sum((each**2).sum() for each in gradients), tensors)


def test_the_first_way_back_is_bounded_whatever_the_length(tensors):
    peaks = [first_order(tensors, "swap", length)[1] for length in (40, 100)]
    assert peaks[1] < 1.5 * peaks[0]
    assert first_order(tensors, "keep", 40)[1] > 3 * peaks[1]


def test_second_gradients_are_those_of_keep_on_whatever_thread(tensors, graphs):
    expected = second_order(tensors, first_order(tensors, "keep", 9)[0])
    gradients = first_order(tensors, "swap", 9)[0]
    (graph,) = graphs
    assert graph().store.sent
    found = []

    def work(given):
        found.extend(second_order(tensors, given))

    thread = threading.Thread(target=work, args=(gradients,))
    thread.start()
    thread.join()
    torch.testing.assert_close(found, list(expected))
    del gradients
    assert graph() is None


def test_a_graph_that_is_let_go_leaves_nothing(tensors, graphs):
    gradients = first_order(tensors, "swap", 9)[0]
    (graph,) = graphs
    store = graph().store
    assert store.bytes <= BUDGET
    del gradients
    assert graph() is None
    assert not store.bytes
    assert not store._backings


def test_weights_changed_in_between_are_an_error(tensors, graphs):
    gradients = first_order(tensors, "swap", 9)[0]
    with torch.no_grad():
        tensors[1].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        second_order(tensors, gradients)


def test_an_explanation_says_what_has_left(tensors):
    x, w = tensors
    with ps.profile() as profile:
        with ps.memory("swap", budget=BUDGET):
            loss = run(x, 9, w).square().sum()
        torch.autograd.grad(loss, tensors, create_graph=True)
    assert "of what torch saved for gradients of gradients" in profile.explain()
