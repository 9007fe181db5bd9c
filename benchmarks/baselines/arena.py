"""The binary Tree-LSTM by hand as far as it goes: arenas, and a backward pass written out.

All states lie in one arena, leaves first and then by height, so that a height writes consecutive
rows. What backward needs is kept in arenas of the same order, and the gradients of the weights are
one product each over all rows at the end. A node has one parent, so gradients of states are written
once and never added. There is no autograd and nothing here waits for a device: all of it can be
captured in one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.baselines.levels import Levels
from benchmarks.baselines.tree_lstm import TreeLSTM

sigmoid_backward = torch.ops.aten.sigmoid_backward
tanh_backward = torch.ops.aten.tanh_backward


class Height(NamedTuple):
    """The nodes of one height: rows among inner nodes, rows of the children by turns."""

    start: int
    end: int
    pairs: Tensor


class Saved(NamedTuple):
    """What backward needs, in rows of the arena or of its inner nodes."""

    words: Tensor
    leaf_gates: Tensor
    #: h of both children, side by side; c of both children.
    children_h: Tensor
    children_c: Tensor
    gates: Tensor
    tanh_c: Tensor


class ArenaSchedule:
    """One batch of trees, ready to run any number of times."""

    def __init__(self, model: TreeLSTM, levels: Levels) -> None:
        self.model = model
        self.hidden = model.leaf_gates.out_features // 3
        self.leaves, self.inner = len(levels.tokens), sum(len(left) for left, _ in levels.children)
        pairs = [torch.stack(children, 1).flatten() for children in levels.children]
        indices = torch.cat([levels.tokens, levels.roots, *pairs])
        # One copy for all of a batch.
        indices = indices.to(model.leaf_gates.weight.device, non_blocking=True)
        sizes = [self.leaves, len(levels.roots), *map(len, pairs)]
        self.tokens, self.roots, *placed = torch.split(indices, sizes)
        ends = torch.tensor([len(each) // 2 for each in pairs]).cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        self.heights = list(map(Height, starts, ends, placed))

    @torch.no_grad()
    def infer(self) -> Tensor:
        """h of every root."""
        h, _ = self._forward()
        return h.index_select(0, self.roots)

    @torch.no_grad()
    def train(self, weights: Tensor) -> tuple[Tensor, ...]:
        """The loss of `training.loss_of`, and its gradients by all parameters."""
        h, saved = self._forward()
        loss = (h.index_select(0, self.roots) @ weights).mean()
        return loss, *self._backward(saved, weights)

    def _forward(self) -> tuple[Tensor, Saved]:
        model, size = self.model, self.hidden
        words = model.embedding.weight.index_select(0, self.tokens)
        leaf_gates = torch.addmm(model.leaf_gates.bias, words, model.leaf_gates.weight.t())
        _activate(leaf_gates, size)
        h, c, tanh_c = words.new_empty(3, self.leaves + self.inner, size).unbind(0)
        write, output, new = leaf_gates.chunk(3, 1)
        torch.mul(write, new, out=c[: self.leaves])
        torch.tanh(c[: self.leaves], out=tanh_c[: self.leaves])
        torch.mul(output, tanh_c[: self.leaves], out=h[: self.leaves])
        saved = Saved(
            words,
            leaf_gates,
            words.new_empty(self.inner, 2 * size),
            words.new_empty(self.inner, 2 * size),
            words.new_empty(self.inner, 5 * size),
            tanh_c,
        )
        for height in self.heights:
            self._combine(height, h, c, saved)
        return h, saved

    def _combine(self, height: Height, h: Tensor, c: Tensor, saved: Saved) -> None:
        start, end, pairs = height
        size, own = self.hidden, slice(self.leaves + start, self.leaves + end)
        children_h, children_c = saved.children_h[start:end], saved.children_c[start:end]
        torch.index_select(h, 0, pairs, out=children_h.view(-1, size))
        torch.index_select(c, 0, pairs, out=children_c.view(-1, size))
        layer, gates = self.model.cell_gates, saved.gates[start:end]
        torch.addmm(layer.bias, children_h, layer.weight.t(), out=gates)
        _activate(gates, size)
        write, keep_left, keep_right, output, new = gates.chunk(5, 1)
        left, right = children_c.chunk(2, 1)
        torch.mul(write, new, out=c[own])
        c[own].addcmul_(keep_left, left).addcmul_(keep_right, right)
        torch.tanh(c[own], out=saved.tanh_c[own])
        torch.mul(output, saved.tanh_c[own], out=h[own])

    def _backward(self, saved: Saved, weights: Tensor) -> tuple[Tensor, ...]:
        model, size = self.model, self.hidden
        # Every row is written before it is read: a root's here, another's by its parent.
        grad_h, grad_c = weights.new_empty(2, self.leaves + self.inner, size).unbind(0)
        grad_h.index_copy_(0, self.roots, (weights / len(self.roots)).expand(len(self.roots), -1))
        grad_c.index_fill_(0, self.roots, 0)
        gates = torch.empty_like(saved.gates)
        for height in reversed(self.heights):
            self._spread(height, saved, grad_h, grad_c, gates)
        leaf_gates = self._leaf_gradients(saved, grad_h, grad_c)
        embedding = torch.zeros_like(model.embedding.weight)
        embedding.index_add_(0, self.tokens, leaf_gates @ model.leaf_gates.weight)
        return (
            embedding,
            leaf_gates.t() @ saved.words,
            leaf_gates.sum(0),
            gates.t() @ saved.children_h,
            gates.sum(0),
        )

    def _spread(
        self, height: Height, saved: Saved, grad_h: Tensor, grad_c: Tensor, all_gates: Tensor
    ) -> None:
        start, end, pairs = height
        size, own = self.hidden, slice(self.leaves + start, self.leaves + end)
        gates, grad_gates = saved.gates[start:end], all_gates[start:end]
        write, _, _, output, new = gates.chunk(5, 1)
        of_c = grad_c[own] + tanh_backward(grad_h[own] * output, saved.tanh_c[own])
        torch.mul(of_c, new, out=grad_gates[:, :size])
        of_children = of_c.repeat(1, 2)
        torch.mul(of_children, saved.children_c[start:end], out=grad_gates[:, size : 3 * size])
        torch.mul(grad_h[own], saved.tanh_c[own], out=grad_gates[:, 3 * size : 4 * size])
        torch.mul(of_c, write, out=grad_gates[:, 4 * size :])
        _activate_backward(grad_gates, gates, size)
        inputs = grad_gates @ self.model.cell_gates.weight
        grad_h.index_copy_(0, pairs, inputs.view(-1, size))
        of_children.mul_(gates[:, size : 3 * size])
        grad_c.index_copy_(0, pairs, of_children.view(-1, size))

    def _leaf_gradients(self, saved: Saved, grad_h: Tensor, grad_c: Tensor) -> Tensor:
        own, size = slice(self.leaves), self.hidden
        write, output, new = saved.leaf_gates.chunk(3, 1)
        of_c = grad_c[own] + tanh_backward(grad_h[own] * output, saved.tanh_c[own])
        gates = torch.cat([of_c * new, grad_h[own] * saved.tanh_c[own], of_c * write], 1)
        _activate_backward(gates, saved.leaf_gates, size)
        return gates


def _activate(gates: Tensor, size: int) -> None:
    """All but the last gate are between 0 and 1."""
    gates[:, :-size].sigmoid_()
    gates[:, -size:].tanh_()


def _activate_backward(gradients: Tensor, gates: Tensor, size: int) -> None:
    gradients[:, :-size].copy_(sigmoid_backward(gradients[:, :-size], gates[:, :-size]))
    gradients[:, -size:].copy_(tanh_backward(gradients[:, -size:], gates[:, -size:]))


class CapturedCall:
    """A call with fixed addresses and no reads, captured once and replayed as one CUDA graph."""

    def __init__(self, call: Callable[[], tuple[Tensor, ...] | Tensor]) -> None:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()  # what libraries set up at a first call cannot be captured
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._result = call()

    def __call__(self) -> tuple[Tensor, ...] | Tensor:
        """The result lies where the last call left its own."""
        self._graph.replay()
        return self._result
