"""Recurrent cells for one example, used by the plain and the traced form of a program alike."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tests.semantics.table import Maker


class LSTMState(NamedTuple):
    """Hidden vector and memory of an LSTM."""

    h: Tensor
    c: Tensor


class LSTM:
    """An LSTM cell over vectors, its weights made by a `Maker`."""

    def __init__(self, make: Maker, inputs: int, hidden: int) -> None:
        self.hidden = hidden
        self.from_input = make.weight("from_input", inputs, 4 * hidden)
        self.from_hidden = make.weight("from_hidden", hidden, 4 * hidden)
        self.bias = make.weight("bias", 4 * hidden)

    def start(self) -> LSTMState:
        """The state before the first input."""
        return LSTMState(self.bias.new_zeros(self.hidden), self.bias.new_zeros(self.hidden))

    def step(self, state: LSTMState, x: Tensor) -> LSTMState:
        """The state after one more input."""
        gates = x @ self.from_input + state.h @ self.from_hidden + self.bias
        take, forget, out, new = gates.chunk(4)
        c = torch.sigmoid(forget) * state.c + torch.sigmoid(take) * torch.tanh(new)
        return LSTMState(torch.sigmoid(out) * torch.tanh(c), c)


class TreeLSTM:
    """The leaf and the inner node of a binary Tree-LSTM."""

    def __init__(self, make: Maker, tokens: int, hidden: int) -> None:
        self.embedding = make.weight("embedding", tokens, hidden)
        self.from_children = make.weight("from_children", 2 * hidden, 5 * hidden)
        self.bias = make.weight("bias", 5 * hidden)

    def leaf(self, token: Tensor) -> LSTMState:
        """The state of a leaf."""
        x = self.embedding[token]
        return LSTMState(torch.tanh(x), x)

    def inner(self, left: LSTMState, right: LSTMState) -> LSTMState:
        """The state of a node with two children."""
        gates = torch.cat([left.h, right.h]) @ self.from_children + self.bias
        take, forget_left, forget_right, out, new = gates.chunk(5)
        c = torch.sigmoid(take) * torch.tanh(new)
        c = c + torch.sigmoid(forget_left) * left.c + torch.sigmoid(forget_right) * right.c
        return LSTMState(torch.sigmoid(out) * torch.tanh(c), c)
