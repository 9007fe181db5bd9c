"""The encoder and attending decoder of the baselines as a program for one pair."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import penstock as ps
from benchmarks.baselines.seq2seq import Seq2Seq, lstm


def seq2seq_program(model: Seq2Seq) -> ps.Function:
    """A function of a source and a target: the loss of the pair."""

    @ps.function
    def loss(source: Tensor, target: Tensor) -> Any:
        def encode(state: Any, x: Tensor) -> Any:
            h, c = lstm(x + model.source_state(state[0]), state[1])
            return (h, c), h

        start = model.start()
        sources = model.source_input(model.embedding(source))
        (h, c), memory = ps.scan(encode, (start, start), sources)

        def decode(state: Any, y: Tensor) -> Any:
            h, c, context = state
            h, c = lstm(y + model.target_state(torch.cat([h, context])), c)
            context = model.attend(memory, h)
            return (h, c, context), torch.cat([h, context])

        targets = model.target_input(model.embedding(target[:-1]))
        _, told = ps.scan(decode, (h, c, start), targets)
        return F.cross_entropy(model.output(told), target[1:])

    return loss
