"""The binary Tree-LSTM of `penstock.nn` in plain torch: three ways to run it over many trees.

A leaf's state comes from its embedding; an inner node's from one product of 2H by 5H. All ways
return h of every root, in the order of the trees, and allow gradients. The model's methods `leaf`
and `cell` are written for one node and, as their operations work on the last dimension, take rows
as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.baselines.levels import Levels, NeededLevels
from benchmarks.baselines.products import Layer
from penstock.data import Node
from penstock.nn import BinaryTreeLSTM
from penstock.nn.tree_lstm import State


class TreeLSTM(BinaryTreeLSTM):
    """The model, in the sizes that are measured."""

    def __init__(self, vocabulary: int = 2000, embedding: int = 300, hidden: int = 150) -> None:
        super().__init__(nn.Embedding(vocabulary, embedding), hidden)


def per_sample(model: TreeLSTM, roots: Sequence[Node]) -> Tensor:
    """Baseline a: eager recursion over Python nodes, one tree after the other."""
    device = model.leaf_gates.weight.device
    as_tensor = torch.tensor if device.type == "cpu" else partial(torch.tensor, device=device)
    return torch.stack([recurse(model, root, as_tensor)[0] for root in roots])


def recurse(
    model: TreeLSTM, node: Node, as_tensor: Callable[[int], Tensor] = torch.tensor
) -> State:
    """The state of one node, by eager recursion; `as_tensor` puts a token where the weights are."""
    if not node.children:
        return model.leaf(as_tensor(node.token))
    left, right = node.children
    return model.cell(*recurse(model, left, as_tensor), *recurse(model, right, as_tensor))


def by_level(model: TreeLSTM, levels: Levels) -> Tensor:
    """Baseline b: one launch for each height; every state made so far stays in one tensor."""
    device = model.leaf_gates.weight.device
    h, c = model.leaf(levels.tokens.to(device))
    for children in levels.children:
        left, right = (child.to(device, non_blocking=True) for child in children)
        new_h, new_c = model.cell(
            h.index_select(0, left),
            c.index_select(0, left),
            h.index_select(0, right),
            c.index_select(0, right),
        )
        h, c = torch.cat([h, new_h]), torch.cat([c, new_c])
    return h.index_select(0, levels.roots.to(device))


def by_level_needed(model: TreeLSTM, levels: NeededLevels) -> Tensor:
    """Baseline b+: as b, but only the states that are still to be read are carried on.

    The roots of a level come last in it and leave the pool at once.
    """
    device = model.leaf_gates.weight.device
    h, c = model.leaf(levels.tokens.to(device))
    finished = [h[levels.leaf_pool :]]
    h, c = h[: levels.leaf_pool], c[: levels.leaf_pool]
    for step in levels.steps:
        indices = (step.left, step.right, step.keep)
        left, right, keep = (index.to(device, non_blocking=True) for index in indices)
        new_h, new_c = model.cell(
            h.index_select(0, left),
            c.index_select(0, left),
            h.index_select(0, right),
            c.index_select(0, right),
        )
        finished.append(new_h[step.pool :])
        h = torch.cat([h.index_select(0, keep), new_h[: step.pool]])
        c = torch.cat([c.index_select(0, keep), new_c[: step.pool]])
    return torch.cat(finished).index_select(0, levels.roots.to(device))


def layers(model: TreeLSTM, levels: Levels) -> list[Layer]:
    """The products that `by_level` makes, for the leaves and each height."""

    def of(linear: nn.Linear, rows: int) -> Layer:
        return Layer(rows, linear.in_features, linear.out_features)

    inner = [of(model.cell_gates, len(left)) for left, _ in levels.children]
    return [of(model.leaf_gates, len(levels.tokens)), *inner]
