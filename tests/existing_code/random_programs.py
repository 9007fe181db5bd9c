"""Random small eager programs over trees: arithmetic, modules, views, changes in place, reads.

A program is a flat list of statements over numbered vectors of three elements, run at every node of
a tree. Reads decide which statements are skipped; one within rounding of its threshold makes the
example unsuitable, since batched and single products differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import nn

SIZE = 3


class UnsuitableError(Exception):
    """A decision of this example hangs on rounding, or its numbers are out of bounds."""


class Statement(NamedTuple):
    """What to do, to which values (counted modulo those there are), and a small number."""

    kind: str
    first: int
    second: int
    number: int


@dataclass
class Tree:
    """A node of an instance."""

    value: torch.Tensor
    children: list[Tree] = field(default_factory=list)
    state: torch.Tensor | None = None


@dataclass
class Weights:
    """What all instances share."""

    matrix: torch.Tensor
    layer: nn.Module
    cell: nn.Module


Rule = Callable[[Weights, torch.Tensor, torch.Tensor, int], "torch.Tensor | None"]

RULES: dict[str, Rule] = {
    "add": lambda w, a, b, k: a + b,
    "subtract": lambda w, a, b, k: 1 - a * b,
    "multiply": lambda w, a, b, k: torch.tanh(a) * torch.sigmoid(b),
    "matrix": lambda w, a, b, k: torch.tanh(a @ w.matrix),
    "layer": lambda w, a, b, k: torch.tanh(w.layer(a)),
    "cell": lambda w, a, b, k: w.cell(a.unsqueeze(0), b.tanh().view(1, -1)).squeeze(0),
    "maximum": lambda w, a, b, k: torch.maximum(a, b - 0.3),
    "stacked": lambda w, a, b, k: torch.stack([a, b, a * 0.5]).mean(dim=0),
    "joined": lambda w, a, b, k: torch.cat([a[k:], b])[:SIZE],
    "chunked": lambda w, a, b, k: sum(torch.cat([a, b]).chunk(2)),
    "element": lambda w, a, b, k: a * b[k],
    "iterated": lambda w, a, b, k: torch.stack([x * (i + k) for i, x in enumerate(a)]),
    "softmax": lambda w, a, b, k: torch.softmax(a, dim=0) + b,
    "detached": lambda w, a, b, k: a.detach() * b,
    "fresh": lambda w, a, b, k: torch.zeros(SIZE) + a[0] * k,
    "by number": lambda w, a, b, k: a * round(float(b.detach()[k]), 1),
    "by best": lambda w, a, b, k: w.matrix[_best(b)] * a,
    "add in place": lambda w, a, b, k: _ignored(a.add_(b * 0.5)),
    "augmented": lambda w, a, b, k: _augment(a, b, k),
    "set": lambda w, a, b, k: a.__setitem__(k, b[0] * 0.5),
    "set a slice": lambda w, a, b, k: a.__setitem__(slice(k, None), b[k:].clone()),
    "through a view": lambda w, a, b, k: _through_a_view(a, b, k),
    "fill a part": lambda w, a, b, k: _ignored(a[: k + 1].fill_(0.25)),
    "view kept": lambda w, a, b, k: a.view(1, -1)[0],
}

KINDS = (*RULES, "skip if", "while", "without gradient")


def _ignored(value: torch.Tensor) -> None:
    del value


def _augment(a: torch.Tensor, b: torch.Tensor, k: int) -> None:
    a *= 0.5
    a[k] += b[k]


def _through_a_view(a: torch.Tensor, b: torch.Tensor, k: int) -> None:
    view = a.view(SIZE, 1)[k:]
    view -= b[k:].unsqueeze(1) * 0.25


def _best(scores: torch.Tensor) -> torch.Tensor:
    ordered = scores.detach().sort(descending=True).values
    if (ordered[0] - ordered[1]).item() < 1e-6:
        raise UnsuitableError
    return scores.argmax()


def _is_above(value: torch.Tensor, threshold: float) -> bool:
    number = value.item()
    if not abs(number) < 1e6 or abs(number - threshold) < 1e-6:
        raise UnsuitableError
    return number > threshold


def run_program(program: tuple[Statement, ...], weights: Weights, tree: Tree) -> torch.Tensor:
    """Visit children first, then run the statements over the node's value and their results."""
    values = [tree.value * 1.0, *(run_program(program, weights, c) * 1.0 for c in tree.children)]
    skipped = 0
    for kind, first, second, number in program:
        if skipped:
            skipped -= 1
            continue
        a, b = values[first % len(values)], values[second % len(values)]
        if kind == "skip if":
            skipped = number + 1 if _is_above(a.sum(), 0.1) else 0
        elif kind == "while":
            while _is_above(a.abs().max(), 1.5):
                a = a / 2
            values.append(a)
        elif kind == "without gradient":
            with torch.no_grad():
                values.append(a * b.norm())
        else:
            made = RULES[kind](weights, a, b, number)
            if made is not None:
                values.append(made)
    tree.state = values[-1]
    return values[-1]


statements = st.builds(
    Statement,
    st.sampled_from(KINDS),
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(0, SIZE - 1),
)
programs = st.lists(statements, min_size=1, max_size=9).map(tuple)

#: The form of a tree: a list of the forms of its children.
forms = st.recursive(st.just([]), lambda form: st.lists(form, max_size=3), max_leaves=5)
forests = st.lists(forms, min_size=1, max_size=4)
