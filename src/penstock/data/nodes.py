"""Trees as Python objects, and the way from nested objects to lists of parents and back.

`Node` is for plain recursion in baselines and tests. Nothing here recurses, so a tree may be deeper
than Python's stack. A nested value is a tree by construction; only its types are checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any, SupportsIndex

import numpy as np

from penstock.data.checks import Integers
from penstock.errors import TreeError, report

#: The token of a node that has none.
NO_TOKEN = -1


class Node:
    """One node of a tree as a Python object."""

    __slots__ = ("children", "token")

    #: The label, NO_TOKEN where there is none.
    token: int
    #: In order; empty for a leaf.
    children: tuple[Node, ...]

    def __init__(self, token: int, children: Iterable[Node] = ()) -> None:
        self.token = token
        self.children = tuple(children)

    def __repr__(self) -> str:
        return f"Node(token={self.token}, {len(self.children)} children)"


def child_lists(parents: Integers) -> tuple[Integers, Integers]:
    """`start` and `children` of the trees that `parents` describes; children keep number order."""
    by_parent = np.argsort(parents, kind="stable")
    roots = int(np.count_nonzero(parents == -1))
    children = by_parent[roots:]
    start = np.zeros(len(parents) + 1, dtype=np.int64)
    np.cumsum(np.bincount(parents[children], minlength=len(parents)), out=start[1:])
    return start, children


def link_nodes(token: list[int], start: list[int], children: list[int], root: int) -> Node:
    """Python objects for the nodes of one tree; returns the root."""
    order = [root]
    for i in order:
        order.extend(children[start[i] : start[i + 1]])
    nodes: list[Node | None] = [None] * len(token)
    for i in reversed(order):
        below = [nodes[k] for k in children[start[i] : start[i + 1]]]
        nodes[i] = Node(token[i], below)  # type: ignore[arg-type]  # linked before their parent
    return nodes[root]  # type: ignore[return-value]


def list_nested(nested: Any, inner: int) -> tuple[list[int], list[int]]:
    """Parents and tokens, in preorder, of nested tuples of integers."""
    parents: list[int] = []
    tokens: list[int] = []
    stack: list[tuple[Any, int]] = [(nested, -1)]
    while stack:
        value, parent = stack.pop()
        position = len(parents)
        parents.append(parent)
        if isinstance(value, tuple | list):
            tokens.append(inner)
            _refuse_empty(value, position)
            stack.extend((child, position) for child in reversed(value))
        else:
            tokens.append(_as_token(value, position))
    return parents, tokens


def list_nodes(node: Any) -> tuple[list[int], list[int]]:
    """Parents and tokens, in preorder, of objects with `.token` and `.children`."""
    parents: list[int] = []
    tokens: list[int] = []
    stack: list[tuple[Any, int]] = [(node, -1)]
    while stack:
        value, parent = stack.pop()
        position = len(parents)
        parents.append(parent)
        tokens.append(_as_token(value.token, position))
        stack.extend((child, position) for child in reversed(value.children))
    return parents, tokens


def _as_token(value: SupportsIndex, position: int) -> int:
    try:
        return index(value)
    except TypeError:
        facts = [("expected", "an int, or a tuple of children"), ("found", type(value).__name__)]
        todo = "Look words up in a vocabulary first, or use Tree.from_brackets."
        raise _refusal("Tree: a token is not an integer.", position, facts, todo) from None


def _refuse_empty(value: Any, position: int) -> None:
    if len(value) == 0:
        facts = [("expected", "one child or more"), ("found", repr(value))]
        todo = "Write a leaf as its token, without a tuple around it."
        raise _refusal("Tree: an inner node has no child.", position, facts, todo)


def _refusal(what: str, position: int, facts: list[tuple[str, str]], todo: str) -> TreeError:
    return TreeError(report(what, where=f"node {position}, in preorder", facts=facts, todo=todo))
