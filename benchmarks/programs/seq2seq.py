"""The encoder and attending decoder of the baselines as a program for one pair."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import penstock as ps
from benchmarks.baselines.seq2seq import Seq2Seq


def seq2seq_program(model: Seq2Seq) -> ps.Function:
    """A function of a source and a target: the loss of the pair."""

    @ps.function
    def loss(source: Tensor, target: Tensor) -> Any:
        def encode(state: Any, x: Tensor) -> Any:
            state = model.encoder(x, state)
            return state, state[0]

        start = model.start()
        (h, c), memory = ps.scan(encode, (start, start), model.embedding(source))

        def decode(state: Any, y: Tensor) -> Any:
            h, c, context = state
            h, c = model.decoder(torch.cat([y, context]), (h, c))
            context = model.attend(memory, h)
            return (h, c, context), torch.cat([h, context])

        _, told = ps.scan(decode, (h, c, start), model.embedding(target[:-1]))
        return F.cross_entropy(model.output(told), target[1:])

    return loss
