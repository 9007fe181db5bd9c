"""Every model of penstock.nn in small, with examples for it and its plain twin."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

import penstock as ps
from penstock.data import Tree
from tests.unit.nn import plain


class Case(NamedTuple):
    """A model, what it is mapped over (a tuple of arguments each), and what it must equal."""

    model: nn.Module
    examples: list[tuple[Any, ...]]
    plain: Any


class Decoder(nn.Module):
    """A step of a language model, for one hypothesis."""

    def __init__(self):
        super().__init__()
        self.embedding, self.cell = nn.Embedding(5, 4), nn.LSTMCell(4, 4)
        self.output = nn.Linear(4, 5)

    def forward(self, state, token):
        h, c = self.cell(self.embedding(token), (state["h"], state["c"]))
        return {"h": h, "c": c}, torch.log_softmax(3 * self.output(h), -1)


def binary_trees():
    trees = ps.data.random_binary_trees(6, leaves=(1, 8), mean=4, spread=2, vocabulary=9, seed=1)
    return [(tree,) for tree in (*trees, Tree.from_nested(3))]


def any_trees():
    trees = ps.data.random_trees(5, max_arity=4, nodes=(2, 9), vocabulary=9, seed=2)
    return [(tree,) for tree in (*trees, Tree.from_nested(3), Tree.from_nested((1, 2), inner=0))]


def sequences():
    return [(torch.randn(length, 3),) for length in (4, 1, 6, 4)]


def vectors(count, *sizes):
    return [tuple(torch.randn(size) for size in sizes) for _ in range(count)]


def decoder_states():
    return [({"h": torch.randn(4), "c": 2 * torch.randn(4)},) for _ in range(7)]


def early_exit():
    """Three layers; some heads are sure and others are not."""
    layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)]
    heads = [nn.Linear(4, 3) for _ in range(3)]
    for head in heads:
        nn.init.normal_(head.weight, std=1.5)
    return ps.nn.EarlyExit(layers, heads, threshold=0.7)


def adaptive_computation():
    """It halts after one to six steps."""
    model = ps.nn.AdaptiveComputation(nn.GRUCell(3, 4), size=4, limit=6)
    nn.init.normal_(model.halt.weight, std=3)
    nn.init.constant_(model.halt.bias, -1)
    return model


def make_case(name):
    """The case of this name, its weights drawn anew."""
    torch.manual_seed(3)
    match name:
        case "BinaryTreeLSTM":
            model = ps.nn.BinaryTreeLSTM(nn.Embedding(9, 3), hidden=4)
            return Case(model, binary_trees(), plain.binary_tree_lstm)
        case "ChildSumTreeLSTM":
            model = ps.nn.ChildSumTreeLSTM(nn.Embedding(9, 3), hidden=4)
            return Case(model, any_trees(), plain.child_sum_tree_lstm)
        case "TreeGRU":
            return Case(ps.nn.TreeGRU(nn.Embedding(9, 3), 4), any_trees(), plain.tree_gru)
        case "RecursiveTensorNet":
            model = ps.nn.RecursiveTensorNet(nn.Embedding(9, 3))
            return Case(model, binary_trees(), plain.recursive_tensor_net)
        case "LSTM":
            return Case(ps.nn.LSTM(3, 4), sequences(), plain.as_torch_layer)
        case "GRU":
            return Case(ps.nn.GRU(3, 4), sequences(), plain.as_torch_layer)
        case "LSTM, two layers and ways":
            model = ps.nn.LSTM(3, 4, layers=2, bidirectional=True)
            return Case(model, sequences(), plain.as_torch_layer)
        case "GRU, two layers and ways":
            model = ps.nn.GRU(3, 4, layers=2, bidirectional=True)
            return Case(model, sequences(), plain.as_torch_layer)
        case "AdaptiveComputation":
            return Case(adaptive_computation(), vectors(8, 3, 4), plain.adaptive_computation)
        case "EarlyExit":
            return Case(early_exit(), vectors(9, 4), plain.early_exit)
        case "MixtureOfExperts":
            experts = [nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))]
            experts += [nn.Linear(4, 3) for _ in range(3)]
            model = ps.nn.MixtureOfExperts(4, experts, k=2)
            return Case(model, vectors(9, 4), plain.mixture_of_experts)
        case "BeamSearch":
            model = ps.nn.BeamSearch(Decoder(), width=3, begin=1, end=0, limit=6)
            return Case(model, decoder_states(), plain.beam_search)
    raise AssertionError(name)


NAMES = [
    "BinaryTreeLSTM",
    "ChildSumTreeLSTM",
    "TreeGRU",
    "RecursiveTensorNet",
    "LSTM",
    "GRU",
    "LSTM, two layers and ways",
    "GRU, two layers and ways",
    "AdaptiveComputation",
    "EarlyExit",
    "MixtureOfExperts",
    "BeamSearch",
]
