"""A Tree holds one tree in compact arrays, reads like one, and refuses what is none."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree

from penstock.data import Node, Tree
from penstock.data.nodes import NO_TOKEN

nested_trees = st.recursive(
    st.integers(0, 99), lambda below: st.lists(below, min_size=1, max_size=5).map(tuple)
)


def as_nested(node: Node) -> object:
    if not node.children:
        return node.token
    return tuple(as_nested(child) for child in node.children)


def by_reading(tree: Tree, i: object) -> object:
    """The nested form, through the reads that a program uses."""
    if tree.is_leaf(i):
        return int(tree.token[i])
    return tuple(by_reading(tree, tree.child(i, k)) for k in range(int(tree.arity(i))))


@given(nested_trees)
def test_nested_tuples_come_back_as_they_were(nested: object) -> None:
    tree = Tree.from_nested(nested)
    assert as_nested(tree.to_nodes()) == nested
    assert by_reading(tree, tree.root) == nested


@given(nested_trees, st.randoms(use_true_random=False))
def test_any_numbering_of_the_nodes_gives_the_same_tree(nested: object, random: object) -> None:
    tree = Tree.from_nested(nested)
    number = list(range(len(tree)))
    random.shuffle(number)  # type: ignore[attr-defined]
    parents, tokens = [0] * len(tree), [0] * len(tree)
    for i, parent in enumerate(tree.parents().tolist()):
        parents[number[i]] = -1 if parent < 0 else number[parent]
        tokens[number[i]] = int(tree.token[i])
    other = Tree.from_parents(parents, tokens)
    assert int(other.root) == number[0]
    assert sorted(other.token.tolist()) == sorted(tree.token.tolist())
    assert other.parents().tolist() == parents


@given(nested_trees)
def test_nodes_and_arrays_give_back_the_tree(nested: object) -> None:
    tree = Tree.from_nested(nested)
    for other in (
        Tree.from_nodes(tree.to_nodes()),
        Tree.from_arrays(tree.token, tree.start, tree.children, tree.root),
        pickle.loads(pickle.dumps(tree)),
    ):
        assert all(map(torch.equal, _pytree.tree_leaves(other), _pytree.tree_leaves(tree)))


@pytest.mark.parametrize("index", [int, torch.tensor], ids=["int", "tensor"])
def test_a_node_index_is_an_int_or_a_tensor(index: object) -> None:
    tree = Tree.from_nested(((7, 8), 9))
    i = index(0)  # type: ignore[operator]
    assert int(tree.left(i)) == 1
    assert int(tree.right(i)) == 4
    assert int(tree.arity(i)) == 2
    assert not tree.is_leaf(i)


def test_all_fields_are_int64_leaves_of_the_pytree() -> None:
    leaves = _pytree.tree_leaves(Tree.from_nested((1, 2)))
    assert [leaf.dtype for leaf in leaves] == [torch.int64] * 4
    assert [leaf.shape for leaf in leaves] == [(3,), (4,), (2,), ()]


def test_anything_passes_through_the_pytree_unchecked() -> None:
    shapes = _pytree.tree_map(lambda leaf: str(tuple(leaf.shape)), Tree.from_nested((1, 2)))
    assert isinstance(shapes, Tree)
    assert shapes.token == "(3,)"


def test_a_tree_may_be_deeper_than_the_stack_of_python() -> None:
    nested: object = 0
    for _ in range(20_000):
        nested = (nested, 1)
    tree = Tree.from_nested(nested)
    assert len(Tree.from_nodes(tree.to_nodes())) == len(tree) == 40_001
    assert len(Tree.from_parents(tree.parents(), tree.token)) == 40_001


def test_one_leaf_is_a_tree() -> None:
    tree = Tree.from_parents([-1], [5])
    assert len(tree) == 1
    assert tree.is_leaf(tree.root)


def test_brackets_hold_the_children_of_a_node() -> None:
    vocabulary = {"a": 0, "b": 1, "c": 2}
    tree = Tree.from_brackets("((a b)c)", vocabulary)
    assert as_nested(tree.to_nodes()) == ((0, 1), 2)
    assert tree.token[tree.root] == NO_TOKEN
    assert as_nested(Tree.from_brackets("(a x)", vocabulary, unknown=7).to_nodes()) == (0, 7)
    assert as_nested(Tree.from_brackets("b", vocabulary).to_nodes()) == 1
