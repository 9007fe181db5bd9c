"""An LSTM over sequences of different lengths in plain torch, run in several ways.

One by one, in a shrinking batch, padded under a mask, and packed through nn.LSTM. All return h of
every sequence's last step, in the order of the sequences. `step` is written for one sequence and,
as its operations work on the last dimension, takes rows as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from benchmarks.baselines.products import Layer
from benchmarks.baselines.training import Forward, training_step

State = tuple[Tensor, Tensor]


class LSTM(nn.Module):
    """The weights, and one step."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.gates = nn.Linear(inputs + hidden, 4 * hidden)

    def start(self, *rows: int) -> State:
        """The state before the first step."""
        device = self.gates.weight.device
        zeros = torch.zeros(*rows, self.hidden, device=device)
        return zeros, torch.zeros(*rows, self.hidden, device=device)

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
    return last.index_select(0, places.to(last.device))


def masked(model: LSTM, sequences: Sequence[Tensor]) -> Tensor:
    """All sequences at once, padded to the longest; those that have ended keep their state."""
    padded = nn.utils.rnn.pad_sequence(list(sequences))
    lengths = torch.tensor([len(sequence) for sequence in sequences]).to(padded.device)
    goes_on = (torch.arange(len(padded), device=padded.device)[:, None] < lengths).unsqueeze(-1)
    h, c = model.start(len(sequences))
    for x, is_live in zip(padded.unbind(0), goes_on.unbind(0), strict=True):
        new_h, new_c = model.step((h, c), x)
        h, c = torch.where(is_live, new_h, h), torch.where(is_live, new_c, c)
    return h


def unrolled(model: LSTM, steps: Tensor) -> Tensor:
    """Sequences of one length, all at once: dimension 0 counts steps, dimension 1 sequences."""
    state = model.start(steps.shape[1])
    for x in steps.unbind(0):
        state = model.step(state, x)
    return state[0]


class LibraryLSTM:
    """torch.nn.LSTM with the weights of a model: cuDNN on a GPU."""

    def __init__(self, model: LSTM) -> None:
        inputs, hidden = model.gates.in_features - model.hidden, model.hidden
        self.layer = nn.LSTM(inputs, hidden).to(model.gates.weight.device)
        weight, bias = _last_two_swapped(model.gates.weight), _last_two_swapped(model.gates.bias)
        # It has two biases, which are added; one is left at zero.
        values = (weight[:, :inputs], weight[:, inputs:], bias, torch.zeros_like(bias))
        with torch.no_grad():
            for parameter, value in zip(self.layer.parameters(), values, strict=True):
                parameter.copy_(value)

    def packed(self, sequences: Sequence[Tensor]) -> Tensor:
        """Sequences of different lengths, packed."""
        packed = nn.utils.rnn.pack_sequence(list(sequences), enforce_sorted=False)
        return self.layer(packed)[1][0][0]  # type: ignore[no-any-return]

    def unrolled(self, steps: Tensor) -> Tensor:
        """Sequences of one length, as `unrolled` takes them."""
        return self.layer(steps)[1][0][0]  # type: ignore[no-any-return]

    def training_step(self, forward: Forward, weights: Tensor) -> tuple[Tensor, ...]:
        """As `training.training_step`, with the gradients in the layout of the model."""
        loss, of_input, of_state, bias, _ = training_step(self.layer, forward, weights)
        gates = torch.cat([of_input, of_state], 1)
        return loss, _last_two_swapped(gates), _last_two_swapped(bias)


def _last_two_swapped(gates: Tensor) -> Tensor:
    """torch has the candidate before the output; and back."""
    write, keep, output, candidate = gates.chunk(4)
    return torch.cat([write, keep, candidate, output])


def layers(model: LSTM, lengths: Sequence[int]) -> list[Layer]:
    """The products that any way must make: of all inputs at once, of the live states at each step.

    Inputs that are data have no gradient.
    """
    inputs, gates = model.gates.in_features - model.hidden, model.gates.out_features
    live = [sum(length > step for length in lengths) for step in range(max(lengths))]
    of_inputs = Layer(sum(lengths), inputs, gates, learns_inputs=False)
    return [of_inputs, *(Layer(rows, model.hidden, gates) for rows in live)]
