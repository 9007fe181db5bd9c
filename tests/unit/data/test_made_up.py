"""Made-up trees have the asked shape, are trees, and depend on the seed alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils import _pytree

from penstock.data import Tree, chains, combs, perfect_trees, random_binary_trees, random_trees
from penstock.errors import ArgumentError

MAKERS: dict[str, Callable[[int], list[Tree]]] = {
    "random_binary_trees": lambda seed: random_binary_trees(50, seed=seed),
    "random_trees": lambda seed: random_trees(50, max_arity=6, nodes=(1, 40), seed=seed),
    "unary random_trees": lambda seed: random_trees(5, max_arity=1, seed=seed),
    "perfect_trees": lambda seed: perfect_trees(3, depth=3, arity=3, seed=seed),
    "perfect_trees of depth 0": lambda seed: perfect_trees(3, depth=0, seed=seed),
    "chains": lambda seed: chains(10, length=(1, 30), seed=seed),
    "combs": lambda seed: combs(10, leaves=(1, 30), seed=seed),
}


def arities(tree: Tree) -> list[int]:
    return torch.diff(tree.start).tolist()


def depth(tree: Tree) -> int:
    level, deepest = [tree.to_nodes()], -1
    while level:
        level, deepest = [child for node in level for child in node.children], deepest + 1
    return deepest


def same(one: list[Tree], other: list[Tree]) -> bool:
    return all(map(torch.equal, _pytree.tree_leaves(one), _pytree.tree_leaves(other)))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_made_up_trees_pass_the_checks(make: Callable[[int], list[Tree]]) -> None:
    for tree in make(0):
        checked = Tree.from_arrays(tree.token, tree.start, tree.children, tree.root)
        assert same([checked], [tree])


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_the_same_seed_gives_the_same_trees(make: Callable[[int], list[Tree]]) -> None:
    assert same(make(3), make(3))
    assert not torch.equal(make(3)[0].token, make(4)[0].token)


def test_random_binary_trees_keep_to_their_leaves() -> None:
    trees = random_binary_trees(2000, leaves=(10, 60), mean=25, spread=10, seed=1)
    counts = [arities(tree).count(0) for tree in trees]
    assert min(counts) == 10
    assert max(counts) <= 60
    assert 24 < sum(counts) / len(counts) < 26
    assert {arity for tree in trees for arity in arities(tree)} == {0, 2}


def test_random_trees_use_every_arity() -> None:
    trees = random_trees(500, max_arity=20, nodes=(30, 80), seed=2)
    assert {arity for tree in trees for arity in arities(tree)} == set(range(21))
    assert {len(tree) for tree in trees} <= set(range(30, 81))


def test_perfect_trees_have_all_leaves_at_one_depth() -> None:
    (tree,) = perfect_trees(1, depth=4)
    assert len(tree) == 31
    assert depth(tree) == 4


def test_chains_and_combs_are_as_deep_as_they_can_be() -> None:
    for tree in chains(10, seed=0):
        assert depth(tree) == len(tree) - 1
    for tree in combs(10, seed=0):
        assert depth(tree) == len(tree) // 2


def test_tokens_come_from_the_vocabulary() -> None:
    tokens = torch.cat([tree.token for tree in random_binary_trees(50, vocabulary=7, seed=0)])
    assert tokens.unique().tolist() == list(range(7))


def test_no_trees_are_an_empty_list() -> None:
    assert random_binary_trees(0, seed=0) == []


@pytest.mark.parametrize(
    ("make", "fact"),
    [
        (lambda: random_binary_trees(-1, seed=0), "count  -1"),
        (lambda: random_trees(2, max_arity=3, vocabulary=0, seed=0), "vocabulary  0"),
        (lambda: random_trees(2, max_arity=0, seed=0), "max_arity  (1, 0)"),
        (lambda: chains(2, length=30, seed=0), "length  30"),
        (lambda: combs(2, leaves=(9, 3), seed=0), "leaves  (9, 3)"),
    ],
)
def test_numbers_of_which_no_trees_can_be_made_are_refused(make, fact) -> None:
    with pytest.raises(ArgumentError, match="Trees cannot be made of these numbers") as caught:
        make()
    assert fact in str(caught.value)
