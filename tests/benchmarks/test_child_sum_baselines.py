"""All ways to run the child-sum Tree-LSTM compute the same loss and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.baselines import child_sum
from benchmarks.baselines.segments import segments_of
from benchmarks.programs.child_sum import relatedness_program
from penstock.data import Tree, chains, random_trees
from penstock.data.sick import SentencePair

LEAF = Tree.from_nested(3)
STAR = Tree.from_nested((1, 2, 3, 4, 5, 6, 7), inner=0)
ROOT_IN_THE_MIDDLE = Tree.from_parents([2, 0, -1, 2, 3], [3, 1, 4, 1, 5])
RANDOM = random_trees(12, max_arity=5, nodes=(2, 15), vocabulary=20, seed=0)
CHAINS = chains(4, length=(2, 9), vocabulary=20, seed=1)


def paired(trees: list[Tree]) -> list[SentencePair]:
    """Every tree with the one before it."""
    scores = [1 + 0.5 * (number % 9) for number in range(len(trees))]
    sides = zip(trees, [trees[-1], *trees[:-1]], scores, strict=True)
    return [SentencePair(left, right, score) for left, right, score in sides]


FORESTS = {
    "random": RANDOM,
    "chains": CHAINS,
    "one pair": [ROOT_IN_THE_MIDDLE],
    "all kinds": [LEAF, STAR, *RANDOM, ROOT_IN_THE_MIDDLE, *CHAINS],
}


def ways_to_run(model: child_sum.Relatedness, pairs: list[SentencePair]) -> list[Tensor]:
    left, right = [pair.left for pair in pairs], [pair.right for pair in pairs]
    return [
        child_sum.per_sample(model, child_sum.sentences_of(pairs)),
        child_sum.by_level(model, segments_of([*left, *right])),
        relatedness_program(model).map(left, right, out="stack"),
    ]


@pytest.mark.parametrize("trees", FORESTS.values(), ids=FORESTS.keys())
def test_all_ways_to_run_the_child_sum_tree_lstm_agree(trees: list[Tree]) -> None:
    torch.manual_seed(0)
    pairs = paired(trees)
    sizes = {"vocabulary": 20, "embedding": 5, "hidden": 4, "similarity": 3}
    model = child_sum.Relatedness(**sizes, trains_embedding=True).double()
    targets = child_sum.targets_of(pairs).double()
    outputs = ways_to_run(model, pairs)
    losses = [child_sum.loss_of(output, targets) for output in outputs]
    results = [
        (output, loss, *torch.autograd.grad(loss, list(model.parameters()), retain_graph=True))
        for output, loss in zip(outputs, losses, strict=True)
    ]
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])


def test_trees_without_inner_nodes_agree_too() -> None:
    model = child_sum.Relatedness(vocabulary=20, embedding=5, hidden=4, similarity=3)
    first, *others = ways_to_run(model, paired([LEAF, Tree.from_nested(7)]))
    for other in others:
        torch.testing.assert_close(other, first)


def test_states_are_stored_on_the_nodes() -> None:
    model = child_sum.Relatedness(vocabulary=20, embedding=5, hidden=4, similarity=3)
    ((left, right),) = child_sum.sentences_of([SentencePair(STAR, LEAF, 1.0)])
    model(left, right)
    states = [node.state for node in (left.root, *left.root.children, right.root)]
    assert all(state is not None and state[0].shape == (1, 4) for state in states)


def test_word_vectors_are_held_fixed_unless_asked_for() -> None:
    fixed, trained = (
        child_sum.Relatedness(vocabulary=20, trains_embedding=choice) for choice in (False, True)
    )
    assert not fixed.embedding.weight.requires_grad
    assert trained.embedding.weight.requires_grad


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (1.0, [1, 0, 0, 0, 0]),
        (3.25, [0, 0, 0.75, 0.25, 0]),
        (4.5, [0, 0, 0, 0.5, 0.5]),
        (5.0, [0, 0, 0, 0, 1]),
    ],
)
def test_a_score_becomes_probabilities_of_its_neighbours(
    score: float, expected: list[float]
) -> None:
    targets = child_sum.targets_of([SentencePair(LEAF, LEAF, score)])
    torch.testing.assert_close(targets, torch.tensor([expected], dtype=torch.float32))


def test_the_products_of_fixed_words_have_no_gradient_of_their_inputs() -> None:
    sizes = {"vocabulary": 20, "embedding": 5, "hidden": 4, "similarity": 3}
    segments = segments_of([STAR, LEAF])
    layers = child_sum.layers(child_sum.Relatedness(**sizes), segments)
    assert layers[:2] == [(9, 5, 12, False), (1, 5, 4, False)]
    assert layers[2:] == [(1, 8, 3, True), (1, 3, 5, True), (7, 4, 4, True), (1, 4, 12, True)]
    trained = child_sum.Relatedness(**sizes, trains_embedding=True)
    assert child_sum.layers(trained, segments)[0].learns_inputs
