"""What makes arrays one tree, checked in numpy before anything runs.

Arrays come in as the user gave them and leave as int64; each refusal names the first place that is
wrong. Nothing here builds a tree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import TreeError, report

Integers = npt.NDArray[np.int64]


def as_integers(values: Any, name: str) -> Integers:
    """`values` as a one-dimensional int64 array."""
    array = np.asarray(values)
    if array.ndim != 1 or not (array.dtype.kind in "iu" or array.size == 0):
        raise TreeError(
            report(
                f"Tree: {name} must be one-dimensional and hold integers.",
                facts=[
                    ("expected", "int64[n]"),
                    ("found", f"{array.dtype}{list(array.shape)}"),
                ],
                todo=f"Pass a list, an array or a tensor of integers as {name}.",
            )
        )
    return array.astype(np.int64)


def check_parents(parents: Integers, tokens: Integers) -> int:
    """Refuse parents that are not one tree over the nodes of `tokens`; return the root."""
    _check_lengths(parents, tokens)
    root = _only_root(parents)
    _check_range(parents, "parents", lowest=-1, size=len(parents))
    _check_no_cycle(parents, root)
    return root


def check_children(token: Integers, start: Integers, children: Integers, root: int) -> None:
    """Refuse child lists that are not one tree with root `root`."""
    size = len(token)
    _check_offsets(start, size, len(children))
    _check_range(children, "children", lowest=0, size=size)
    _check_range(np.array([root]), "root", lowest=0, size=size)
    parents = _parents_of_children(start, children, size)
    if parents[root] != -1:
        raise TreeError(
            report(
                "Tree: the root is the child of another node.",
                facts=[("root", str(root)), ("its parent", str(parents[root]))],
                todo="Pass the node that is nobody's child as root.",
            )
        )
    check_parents(parents, token)


def _check_lengths(parents: Integers, tokens: Integers) -> None:
    if len(parents) == len(tokens) > 0:
        return
    if len(parents) == len(tokens):
        raise TreeError(
            report("Tree: a tree has at least one node.", todo="Leave empty trees out.")
        )
    raise TreeError(
        report(
            "Tree: every node needs one parent and one token.",
            facts=[("parents", str(len(parents))), ("tokens", str(len(tokens)))],
            todo="Give both the same length; the root's parent is -1.",
        )
    )


def _only_root(parents: Integers) -> int:
    roots = np.flatnonzero(parents == -1)
    if len(roots) == 1:
        return int(roots[0])
    found = "none" if len(roots) == 0 else "nodes " + ", ".join(map(str, roots[:5]))
    raise TreeError(
        report(
            "Tree: a tree has exactly one root.",
            facts=[("expected", "one node without a parent"), ("found", found)],
            todo="Give the root the parent -1 and every other node the index of its parent.",
        )
    )


def _check_range(indices: Integers, name: str, *, lowest: int, size: int) -> None:
    outside = np.flatnonzero((indices < lowest) | (indices >= size))
    if len(outside) == 0:
        return
    place = int(outside[0])
    raise TreeError(
        report(
            f"Tree: an index in {name} is out of range.",
            where=f"{name}[{place}]" if name != "root" else None,
            facts=[("allowed", f"{lowest} to {size - 1}"), ("found", str(indices[place]))],
            todo="Indices count the nodes of this tree alone, from 0.",
        )
    )


def _check_no_cycle(parents: Integers, root: int) -> None:
    """Follow all parents at once in doubling steps; whoever has not met the root never will."""
    ancestor = parents.copy()
    ancestor[root] = root
    for _ in range(len(parents).bit_length()):
        ancestor = ancestor[ancestor]
    lost = np.flatnonzero(ancestor != root)
    if len(lost):
        node = int(lost[0])
        raise TreeError(
            report(
                "Tree: the parents of a node go round in a cycle.",
                where=f"node {node}",
                facts=[
                    ("expected", f"a path to the root, node {root}"),
                    ("found", _path(parents, node)),
                ],
                todo="Make each node's parent a node that is nearer to the root.",
            )
        )


def _path(parents: Integers, node: int, length: int = 5) -> str:
    path = [node]
    while len(path) < length and parents[path[-1]] != -1:
        path.append(int(parents[path[-1]]))
    return " -> ".join(map(str, path)) + " -> ..."


def _check_offsets(start: Integers, size: int, child_count: int) -> None:
    if len(start) != size + 1:
        facts = [("expected", f"{size + 1} offsets for {size} nodes"), ("found", str(len(start)))]
    elif start[0] != 0 or start[-1] != child_count:
        facts = [
            ("expected", f"from 0 to {child_count}, the length of children"),
            ("found", f"from {start[0]} to {start[-1]}"),
        ]
    elif (np.diff(start) < 0).any():
        place = int(np.flatnonzero(np.diff(start) < 0)[0])
        facts = [
            ("expected", f"start[{place + 1}] >= start[{place}]"),
            ("found", f"{start[place + 1]} and {start[place]}"),
        ]
    else:
        return
    todo = "The children of node i are children[start[i] : start[i + 1]]."
    raise TreeError(report("Tree: start does not cut children into lists.", facts=facts, todo=todo))


def _parents_of_children(start: Integers, children: Integers, size: int) -> Integers:
    owner = np.repeat(np.arange(size), np.diff(start))
    parents = np.full(size, -1, dtype=np.int64)
    parents[children] = owner
    twice = np.flatnonzero(np.bincount(children, minlength=size) > 1)
    if len(twice):
        node = int(twice[0])
        raise TreeError(
            report(
                "Tree: a node has two parents.",
                where=f"node {node}",
                facts=[
                    ("expected", "one list of children that names it"),
                    ("found", "those of nodes " + ", ".join(map(str, owner[children == node][:5]))),
                ],
                todo="A shared subtree must be written out once for each parent.",
            )
        )
    return parents
