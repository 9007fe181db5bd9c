"""LSTM and GRU over sequences of any length, in one or both directions.

Parameters have the names, shapes and initial values of torch's own layers, so a `state_dict` goes
either way. A layer is written for one sequence, as a torch layer takes one that is not batched; in
a map, sequences leave the batch when they end, and nothing is padded.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import penstock as ps


class _Recurrent(nn.Module):
    """Layers and directions, around the step of a cell."""

    #: How many gates a cell has.
    gates: int
    #: How many vectors its state has.
    parts: int

    def __init__(
        self, inputs: int, hidden: int, *, layers: int = 1, bidirectional: bool = False
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"{type(self).__name__}: there are {layers} layers. Pass 1 or more.")
        self.hidden = hidden
        self.layers = layers
        self.directions = ("", "_reverse") if bidirectional else ("",)
        bound = 1 / math.sqrt(hidden)
        for layer in range(layers):
            size = inputs if layer == 0 else hidden * len(self.directions)
            for direction in self.directions:
                for kind, shape in (("ih", (size,)), ("hh", (hidden,))):
                    self._add(f"weight_{kind}_l{layer}{direction}", shape, bound)
                for kind in ("ih", "hh"):
                    self._add(f"bias_{kind}_l{layer}{direction}", (), bound)

    def _add(self, name: str, shape: tuple[int, ...], bound: float) -> None:
        values = torch.empty(self.gates * self.hidden, *shape)
        self.register_parameter(name, nn.Parameter(values.uniform_(-bound, bound)))

    def _run(self, sequence: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """States of the last layer at all steps, and the last states of all layers."""
        ends: list[tuple[Tensor, ...]] = []
        for layer in range(self.layers):
            runs = [self._run_layer(sequence, f"l{layer}{way}") for way in self.directions]
            ends.extend(end for end, _ in runs)
            sequence = torch.cat([states for _, states in runs], -1)
        return sequence, tuple(
            torch.stack([end[part] for end in ends]) for part in range(self.parts)
        )

    def _run_layer(self, sequence: Tensor, name: str) -> tuple[tuple[Tensor, ...], Tensor]:
        weight, bias = getattr(self, f"weight_hh_{name}"), getattr(self, f"bias_hh_{name}")
        # For all steps at once: one launch for all sequences, whatever their lengths.
        given = F.linear(
            sequence, getattr(self, f"weight_ih_{name}"), getattr(self, f"bias_ih_{name}")
        )

        def step(state: tuple[Tensor, ...], x: Tensor) -> Any:
            state = self.step(x, F.linear(state[0], weight, bias), *state)
            return state, state[0]

        start = (weight.new_zeros(self.hidden),) * self.parts
        return ps.scan(step, start, given, reverse=name.endswith("_reverse"))

    def step(self, x: Tensor, carried: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """The next state, from what the input and the state give to the gates."""
        raise NotImplementedError


class LSTM(_Recurrent):
    """An LSTM over one sequence, float[n, inputs]; n may be 0.

    At each step, with the input x and the states h and c of the step before::

        i, f, o = s(W_i x + U_i h + b_i), s(W_f x + U_f h + b_f), s(W_o x + U_o h + b_o)
        c = f * c + i * tanh(W_u x + U_u h + b_u)
        h = o * tanh(c)

    It returns what `torch.nn.LSTM` returns: the states h of all steps, float[n, directions *
    hidden], and the last h and c of each layer and direction, float[layers * directions, hidden].

    Arguments:
        inputs: the size of an element of the sequence.
        hidden: the size of h and c.
        layers: each reads the states of the one below.
        bidirectional: read from the last element to the first as well.

    >>> sentences = [torch.randn(length, 8) for length in (3, 11, 5)]
    >>> results = ps.map(LSTM(8, 16, bidirectional=True), sentences)
    >>> [tuple(states.shape) for states, (h, c) in results]
    [(3, 32), (11, 32), (5, 32)]
    """

    gates = 4
    parts = 2

    @ps.function
    def forward(self, sequence: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # type: ignore[override]
        """All states, and the last ones: h and c."""
        states, (h, c) = self._run(sequence)
        return states, (h, c)

    def step(self, x: Tensor, carried: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """h and c."""
        write, keep, candidate, output = (x + carried).chunk(4, -1)
        c = torch.sigmoid(keep) * state[1] + torch.sigmoid(write) * torch.tanh(candidate)
        return torch.sigmoid(output) * torch.tanh(c), c


class GRU(_Recurrent):
    """A GRU over one sequence, float[n, inputs]; n may be 0.

    At each step, with the input x and the state h of the step before::

        r, z = s(W_r x + U_r h + b_r), s(W_z x + U_z h + b_z)
        h = z * h + (1 - z) * tanh(W_n x + b_n + r * (U_n h + d_n))

    It returns what `torch.nn.GRU` returns: the states of all steps, float[n, directions * hidden],
    and the last of each layer and direction, float[layers * directions, hidden].

    Arguments:
        inputs: the size of an element of the sequence.
        hidden: the size of h.
        layers: each reads the states of the one below.
        bidirectional: read from the last element to the first as well.

    >>> sentences = [torch.randn(length, 8) for length in (3, 11, 5)]
    >>> [tuple(states.shape) for states, last in ps.map(GRU(8, 16), sentences)]
    [(3, 16), (11, 16), (5, 16)]
    """

    gates = 3
    parts = 1

    @ps.function
    def forward(self, sequence: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """All states, and the last ones."""
        states, (h,) = self._run(sequence)
        return states, h

    def step(self, x: Tensor, carried: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """h."""
        reset, update, candidate = x.chunk(3, -1)
        reset_carried, update_carried, candidate_carried = carried.chunk(3, -1)
        r = torch.sigmoid(reset + reset_carried)
        z = torch.sigmoid(update + update_carried)
        return (z * state[0] + (1 - z) * torch.tanh(candidate + r * candidate_carried),)
