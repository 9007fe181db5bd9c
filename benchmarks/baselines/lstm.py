"""An LSTM over sequences of different lengths in plain torch: one by one, and in a shrinking batch.

Both return h of every sequence's last step, in the order of the sequences. `step` is written for
one sequence and, as its operations work on the last dimension, takes rows as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

State = tuple[Tensor, Tensor]


class LSTM(nn.Module):
    """The weights, and one step."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.gates = nn.Linear(inputs + hidden, 4 * hidden)

    def start(self, *rows: int) -> State:
        """The state before the first step."""
        return torch.zeros(*rows, self.hidden), torch.zeros(*rows, self.hidden)

    def step(self, state: State, x: Tensor) -> State:
        """The next state: h and c."""
        h, c = state
        write, keep, output, candidate = self.gates(torch.cat([x, h], -1)).chunk(4, -1)
        c = torch.sigmoid(keep) * c + torch.sigmoid(write) * torch.tanh(candidate)
        return torch.sigmoid(output) * torch.tanh(c), c


def random_sequences(count: int, lengths: tuple[int, int], inputs: int, seed: int) -> list[Tensor]:
    """Sequences with lengths drawn uniformly between two bounds, both included."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(lengths[0], lengths[1] + 1, (count,), generator=generator)
    return [torch.randn(length, inputs, generator=generator) for length in drawn.tolist()]


def per_sample(model: LSTM, sequences: Sequence[Tensor]) -> Tensor:
    """One sequence after the other."""
    return torch.stack([_last(model, sequence) for sequence in sequences])


def _last(model: LSTM, sequence: Tensor) -> Tensor:
    state = model.start()
    for x in sequence.unbind(0):
        state = model.step(state, x)
    return state[0]


def shrinking(model: LSTM, sequences: Sequence[Tensor]) -> Tensor:
    """All sequences at once, longest first; those that have ended leave the batch."""
    order = sorted(range(len(sequences)), key=lambda number: -len(sequences[number]))
    packed = nn.utils.rnn.pack_sequence([sequences[number] for number in order])
    sizes = packed.batch_sizes.tolist()
    state, ended = model.start(len(order)), []
    for x in torch.split(packed.data, sizes):
        h, c = state
        if len(x) < len(h):
            ended.append(h[len(x) :])
        state = model.step((h[: len(x)], c[: len(x)]), x)
    last = torch.cat([state[0], *reversed(ended)])
    places = torch.empty(len(order), dtype=torch.int64)
    places[torch.tensor(order)] = torch.arange(len(order))
    return last.index_select(0, places)
