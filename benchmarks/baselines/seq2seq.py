"""An LSTM encoder and a decoder that attends to the encoder's states, run by hand in plain torch.

The loss of a pair is the mean cross-entropy of the target's tokens, each told by those before it.
By hand a whole batch is padded: the encoder is torch's own LSTM on packed sequences, and the
decoder runs over pairs sorted by target length, so that the pairs still going on are the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence


class Pair(NamedTuple):
    """Tokens of a source and of a target."""

    source: Tensor
    target: Tensor


class Seq2Seq(nn.Module):
    """The weights, and what one step computes for one pair or for rows.

    What steps take of their input is known beforehand, and computed for all of them at once.
    """

    def __init__(self, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.source_input = nn.Linear(hidden, 4 * hidden)
        self.source_state = nn.Linear(hidden, 4 * hidden, bias=False)
        self.target_input = nn.Linear(hidden, 4 * hidden)
        self.target_state = nn.Linear(2 * hidden, 4 * hidden, bias=False)
        self.output = nn.Linear(2 * hidden, vocabulary)

    def start(self) -> Tensor:
        """What states begin with."""
        return torch.zeros(self.hidden)

    def attend(self, states: Tensor, h: Tensor) -> Tensor:
        """The states of one source, weighted by how they fit."""
        return torch.softmax(states @ h, 0) @ states

    def padded_step(
        self, y: Tensor, before: Tensor, c: Tensor, keys: Tensor, outside: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A step of the decoder for rows whose sources are padded: h, c and what it attends to."""
        h, c = lstm(y + self.target_state(before), c)
        scores = torch.bmm(h.unsqueeze(1), keys.mT).squeeze(1)  # far faster than keys @ column
        weights = scores.masked_fill(outside, float("-inf")).softmax(1)
        return h, c, torch.bmm(weights.unsqueeze(1), keys).squeeze(1)


def lstm(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The next state of an LSTM."""
    i, f, g, o = gates.chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def made_up_pairs(
    count: int, shortest: int, longest: int, vocabulary: int, seed: int
) -> list[Pair]:
    """Pairs of random tokens; a target has one token more, which is told by nothing."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (count, 2), generator=generator).tolist()
    return [
        Pair(
            torch.randint(vocabulary, (source,), generator=generator),
            torch.randint(vocabulary, (target + 1,), generator=generator),
        )
        for source, target in lengths
    ]


def per_sample(model: Seq2Seq, pairs: Sequence[Pair]) -> Tensor:
    """The losses, one pair after the other."""
    return torch.stack([_loss(model, pair) for pair in pairs])


def _loss(model: Seq2Seq, pair: Pair) -> Tensor:
    h = c = model.start()
    states = []
    for x in model.source_input(model.embedding(pair.source)):
        h, c = lstm(x + model.source_state(h), c)
        states.append(h)
    memory, context, told = torch.stack(states), model.start(), []
    for y in model.target_input(model.embedding(pair.target[:-1])):
        h, c = lstm(y + model.target_state(torch.cat([h, context])), c)
        context = model.attend(memory, h)
        told.append(torch.cat([h, context]))
    return F.cross_entropy(model.output(torch.stack(told)), pair.target[1:])


def padded(model: Seq2Seq, pairs: Sequence[Pair]) -> Tensor:
    """The losses, the whole batch padded; pairs that have ended are left out."""
    order = sorted(range(len(pairs)), key=lambda k: -len(pairs[k].target))
    sources = [pairs[k].source for k in order]
    targets = [pairs[k].target for k in order]
    memory, h, c = _encode(model, sources)
    lengths = torch.tensor([len(source) for source in sources])
    outside = torch.arange(memory.shape[1]) >= lengths[:, None]
    steps = torch.tensor([len(target) - 1 for target in targets])
    inputs = model.target_input(model.embedding(pad_sequence(targets)[:-1]))
    context, told = torch.zeros_like(h), []
    active = (steps > torch.arange(len(inputs))[:, None]).sum(1).tolist()
    for y, rows in zip(inputs, active, strict=True):
        before = torch.cat([h[:rows], context[:rows]], 1)
        h, c, context = model.padded_step(y[:rows], before, c[:rows], memory[:rows], outside[:rows])
        told.append(torch.cat([h, context], 1))
    expected = torch.cat([column[:rows] for column, rows in zip(pad_sequence(targets)[1:], active)])
    losses = F.cross_entropy(model.output(torch.cat(told)), expected, reduction="none")
    owners = torch.cat([torch.arange(rows) for rows in active])
    summed = torch.zeros(len(pairs)).index_add(0, owners, losses) / steps
    return torch.empty_like(summed).index_copy(0, torch.tensor(order), summed)


def _encode(model: Seq2Seq, sources: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The padded states of all sources, and the last ones."""
    lengths = torch.tensor([len(source) for source in sources])
    embedded = model.embedding(pad_sequence(list(sources), batch_first=True))
    packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
    states, (h, c) = _encoder_of(model)(packed)
    return pad_packed_sequence(states, batch_first=True)[0], h[0], c[0]


def _encoder_of(model: Seq2Seq) -> nn.LSTM:
    """torch's LSTM with the weights of the encoder."""
    encoder = nn.LSTM(model.hidden, model.hidden, batch_first=True, device="meta")
    encoder.weight_ih_l0 = model.source_input.weight
    encoder.weight_hh_l0 = model.source_state.weight
    encoder.bias_ih_l0 = model.source_input.bias
    encoder.bias_hh_l0 = nn.Parameter(torch.zeros(4 * model.hidden), requires_grad=False)
    return encoder
