"""One tree as four int64 tensors, for recursive programs.

Nodes are numbered 0 to n-1. The children of node i are `children[start[i] : start[i + 1]]`, in
order, so one form serves binary trees and trees of any arity. The `from_...` readers check that the
arrays are one tree; the plain constructor checks nothing, because traced values pass through it.
A tree holds structure and tokens only: it does not batch and knows no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.data.brackets import parse_brackets
from penstock.data.checks import Integers, as_integers, check_children, check_parents
from penstock.data.nodes import (
    NO_TOKEN,
    Node,
    child_lists,
    link_nodes,
    list_nested,
    list_nodes,
)
from penstock.data.pytree import register_fields_as_leaves


@register_fields_as_leaves
@dataclass(frozen=True, eq=False)
class Tree:
    """One tree as compact arrays: a pytree whose leaves are its int64 tensors.

    `arity`, `child`, `left`, `right` and `is_leaf` are plain reads of these tensors. They take a
    Python int, a 0-d tensor or a traced node index, and cost no launch in a `ps.function`.

    >>> tree = Tree.from_nested(((7, 8), 9))
    >>> left = tree.left(tree.root)
    >>> int(tree.arity(left)), bool(tree.is_leaf(left))
    (2, False)
    >>> int(tree.token[tree.right(tree.root)])
    9
    """

    #: int64[n]: the label of each node; NO_TOKEN where a node has none.
    token: Tensor
    #: int64[n + 1]: offsets into `children`, rising from 0 to m.
    start: Tensor
    #: int64[m], m = n - 1: the lists of children, one after the other.
    children: Tensor
    #: int64, 0-d: the node that is nobody's child.
    root: Tensor

    @staticmethod
    def from_arrays(token: Any, start: Any, children: Any, root: Any) -> Tree:
        """The tree with these fields, checked: one root, no cycle, one parent for each node."""
        token, start = as_integers(token, "token"), as_integers(start, "start")
        children, root = as_integers(children, "children"), int(root)
        check_children(token, start, children, root)
        return _from_checked(token, start, children, root)

    @staticmethod
    def from_parents(parents: Any, tokens: Any) -> Tree:
        """The tree in which node i hangs from node `parents[i]`; the root's parent is -1.

        Children keep the order of their numbers.

        >>> Tree.from_parents([-1, 0, 0], tokens=[5, 6, 7]).children.tolist()
        [1, 2]
        """
        parents, tokens = as_integers(parents, "parents"), as_integers(tokens, "tokens")
        root = check_parents(parents, tokens)
        return _from_checked_parents(parents, tokens, root)

    @staticmethod
    def from_nested(nested: Any, *, inner: int = NO_TOKEN) -> Tree:
        """The tree of nested tuples or lists: an int is a leaf's token, a tuple its children.

        `inner` is the token of all nodes that have children. Nodes are numbered in preorder.

        >>> Tree.from_nested((1, (2, 3, 4))).start.tolist()
        [0, 2, 2, 5, 5, 5, 5]
        """
        parents, tokens = list_nested(nested, inner)
        return _from_checked_parents(np.array(parents), np.array(tokens), 0)

    @staticmethod
    def from_brackets(
        text: str,
        vocabulary: Mapping[str, int],
        *,
        unknown: int | None = None,
        inner: int = NO_TOKEN,
    ) -> Tree:
        """The tree of a bracketed text: words are leaves, brackets hold the children of a node.

        A word that the vocabulary lacks becomes `unknown`, or is an error without it.

        >>> Tree.from_brackets("( ( a b ) c )", {"a": 0, "b": 1, "c": 2}).token.tolist()
        [-1, -1, 0, 1, 2]
        """
        return Tree.from_nested(parse_brackets(text, vocabulary, unknown), inner=inner)

    @staticmethod
    def from_nodes(node: Any) -> Tree:
        """The tree under a Python object that has `.token` and `.children`; preorder numbers."""
        parents, tokens = list_nodes(node)
        return _from_checked_parents(np.array(parents), np.array(tokens), 0)

    def arity(self, i: Any) -> Tensor:
        """How many children node i has."""
        return self.start[i + 1] - self.start[i]

    def is_leaf(self, i: Any) -> Tensor:
        """Whether node i has no children."""
        return self.start[i + 1] == self.start[i]

    def child(self, i: Any, k: Any) -> Tensor:
        """Child k of node i. There must be one: this is a read, and nothing is checked."""
        return self.children[self.start[i] + k]

    def left(self, i: Any) -> Tensor:
        """The first child of node i."""
        return self.child(i, 0)

    def right(self, i: Any) -> Tensor:
        """The second child of node i."""
        return self.child(i, 1)

    def __len__(self) -> int:
        """How many nodes there are."""
        return int(self.token.shape[0])

    def parents(self) -> Tensor:
        """int64[n]: the parent of each node, -1 for the root."""
        parents = torch.full_like(self.token, -1)
        parents[self.children] = torch.repeat_interleave(torch.diff(self.start))
        return parents

    def to_nodes(self) -> Node:
        """The root as a light Python object with `.token` and `.children`, for plain recursion.

        >>> first, second = Tree.from_nested((1, (2, 3))).to_nodes().children
        >>> first.token, [leaf.token for leaf in second.children]
        (1, [2, 3])
        """
        return link_nodes(
            self.token.tolist(), self.start.tolist(), self.children.tolist(), int(self.root)
        )


def _from_checked_parents(parents: Integers, tokens: Integers, root: int) -> Tree:
    start, children = child_lists(parents)
    return _from_checked(tokens, start, children, root)


def _from_checked(tokens: Integers, start: Integers, children: Integers, root: int) -> Tree:
    return Tree(
        token=torch.from_numpy(tokens),
        start=torch.from_numpy(start),
        children=torch.from_numpy(children),
        root=torch.tensor(root),
    )
