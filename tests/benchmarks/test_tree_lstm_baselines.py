"""All ways to run the Tree-LSTM by hand compute the same states and gradients."""

from __future__ import annotations

import argparse

import pytest
import torch

from benchmarks import tree_gpu
from benchmarks.agreement import check_agreement
from benchmarks.baselines import tree_lstm
from benchmarks.baselines.arena import ArenaSchedule
from benchmarks.baselines.levels import levels_of, needed_levels_of
from benchmarks.baselines.training import loss_and_gradients
from benchmarks.tree_subject import REFERENCE, TreeSubject
from penstock.data import Tree, combs, perfect_trees, random_binary_trees

FORESTS = {
    "random": random_binary_trees(7, leaves=(1, 12), mean=6, spread=4, vocabulary=20, seed=0),
    "combs": combs(4, leaves=(1, 9), vocabulary=20, seed=1),
    "perfect": perfect_trees(3, depth=3, vocabulary=20),
    "leaves only": perfect_trees(3, depth=0, vocabulary=20),
    "one tree": random_binary_trees(1, vocabulary=20, seed=2),
    "roots anywhere": [Tree.from_parents([4, 2, 4, 2, -1], [3, 1, 4, 1, 5])],
}


@pytest.mark.parametrize("trees", FORESTS.values(), ids=FORESTS.keys())
def test_all_baselines_agree(trees: list[Tree]) -> None:
    torch.manual_seed(0)
    model = tree_lstm.TreeLSTM(vocabulary=20, embedding=5, hidden=4).double()
    weights = torch.randn(4, dtype=torch.float64)
    nodes = [tree.to_nodes() for tree in trees]
    ways = [
        lambda: tree_lstm.per_sample(model, nodes),
        lambda: tree_lstm.by_level(model, levels_of(trees)),
        lambda: tree_lstm.by_level_needed(model, needed_levels_of(trees)),
    ]
    # Trees of one leaf never reach the cell, whose weights then have no gradient.
    if all(len(tree) == 1 for tree in trees):
        results = [(way(),) for way in ways]
    else:
        results = [loss_and_gradients(model, way, weights) for way in ways]
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])


@pytest.mark.parametrize("trees", FORESTS.values(), ids=FORESTS.keys())
def test_the_arena_has_the_loss_and_the_gradients_of_autograd(trees: list[Tree]) -> None:
    torch.manual_seed(0)
    model = tree_lstm.TreeLSTM(vocabulary=20, embedding=5, hidden=4).double()
    weights = torch.randn(4, dtype=torch.float64)
    levels = levels_of(trees)
    schedule = ArenaSchedule(model, levels)
    torch.testing.assert_close(schedule.infer(), tree_lstm.by_level(model, levels).detach())
    if any(len(tree) > 1 for tree in trees):
        expected = loss_and_gradients(model, lambda: tree_lstm.by_level(model, levels), weights)
        torch.testing.assert_close(schedule.train(weights), expected)


@pytest.mark.parametrize("weights", [torch.randn(4), None], ids=["training", "inference"])
def test_the_candidates_for_a_gpu_agree_here_too(
    weights: torch.Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_gpu, "CapturedCall", lambda call: call)
    torch.manual_seed(0)
    model = tree_lstm.TreeLSTM(vocabulary=20, embedding=5, hidden=4)
    trees = random_binary_trees(3, vocabulary=20, seed=0)
    subject = TreeSubject(model, trees)
    half = tree_gpu.by_autograd(subject, weights, is_half=True)
    check_agreement(half, REFERENCE, 0.1)
    whole = tree_gpu.by_autograd(subject, weights, is_half=False)
    check_agreement({**whole, **tree_gpu.by_schedule(subject, weights)}, REFERENCE, 1e-4)


def test_the_script_for_a_gpu_lacks_only_the_capture_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_gpu, "CapturedCall", lambda call: call)
    parser = argparse.ArgumentParser()
    tree_gpu.add_options(parser)
    sizes = "--hidden 4 --batches 2 101 --no-compiled"
    options = parser.parse_args(sizes.split())
    options.device, options.rounds = "cpu", 1
    results = list(tree_gpu.measure(options))
    modes = ["training", "training", "inference", "inference"]
    assert [result.title.split()[1] for result in results] == modes * 2
    for whole, half in zip(results[::2], results[1::2], strict=True):
        assert (whole.bound, half.bound) == (tree_gpu.BOUND, None)
        assert whole["penstock"].share is not None
        assert half.title.endswith("bfloat16")
    assert "per sample (a)" in results[4].missing


def test_the_products_are_those_of_the_levels() -> None:
    model = tree_lstm.TreeLSTM(vocabulary=20, embedding=5, hidden=4)
    layers = tree_lstm.layers(model, levels_of(FORESTS["perfect"]))
    assert layers == [(24, 5, 12, True), (12, 8, 20, True), (6, 8, 20, True), (3, 8, 20, True)]
