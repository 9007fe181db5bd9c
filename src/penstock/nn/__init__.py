"""Ready models: ordinary modules whose `forward` is a program for one example.

Each is trained, saved, copied and moved like any other module; `ps.map(module, xs)` runs it for
many examples at once. Equations stand in the docstrings: s is the sigmoid, * multiplies element by
element.
"""

from penstock.nn.adaptive import AdaptiveComputation, EarlyExit
from penstock.nn.decoding import BeamSearch
from penstock.nn.experts import MixtureOfExperts
from penstock.nn.sequences import GRU, LSTM
from penstock.nn.tensor_net import RecursiveTensorNet
from penstock.nn.tree_gru import TreeGRU
from penstock.nn.tree_lstm import BinaryTreeLSTM, ChildSumTreeLSTM

__all__ = [
    "GRU",
    "LSTM",
    "AdaptiveComputation",
    "BeamSearch",
    "BinaryTreeLSTM",
    "ChildSumTreeLSTM",
    "EarlyExit",
    "MixtureOfExperts",
    "RecursiveTensorNet",
    "TreeGRU",
]
