"""Decoding one symbol after the other: greedy until an end symbol, and beam search."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import penstock as ps
from tests.semantics.table import Case, Maker, table_program

TOKENS, HIDDEN, END = 5, 4, 0
LONGEST, BEAM = 6, 3


class Decoder:
    """A recurrent language model with one vector of state."""

    def __init__(self, make: Maker) -> None:
        self.embedding = make.weight("embedding", TOKENS, HIDDEN, scale=1.0)
        self.recur = make.weight("recur", HIDDEN, HIDDEN, scale=1.0)
        self.project = make.weight("project", HIDDEN, TOKENS, scale=1.5)

    def step(self, h: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """The next state and the log-probabilities of the next token."""
        h = torch.tanh(h @ self.recur + self.embedding[token])
        return h, torch.log_softmax(h @ self.project, -1)


@table_program(torch.float32, torch.float64)
def greedy_decoding(make: Maker) -> Case:
    """The likeliest symbol each step until the end symbol, for at most six steps."""
    decoder = Decoder(make)

    def plain(h: Tensor) -> tuple[Tensor, Any, Tensor]:
        token, score, count = torch.tensor(1), h.new_zeros(()), 0
        tokens = torch.full((LONGEST,), END, device=h.device)
        while token != END and count < LONGEST:
            h, log_probabilities = decoder.step(h, token)
            token = log_probabilities.argmax()
            score = score + log_probabilities.max()
            tokens[count] = token
            count += 1
        return tokens, count, score

    @ps.function
    def traced(h: Tensor) -> tuple[Tensor, Any, Tensor]:
        def body(state: Any) -> dict[str, Any]:
            h, log_probabilities = decoder.step(state["h"], state["token"])
            token, t = log_probabilities.argmax(), state["t"]
            return {
                "h": h,
                "token": token,
                "t": t + 1,
                "score": state["score"] + log_probabilities.max(),
                "tokens": state["tokens"].write(t, token),
            }

        tokens = ps.TensorArray.unstack(torch.full((LONGEST,), END, device=h.device))
        start = {"h": h, "token": 1, "t": 0, "score": h.new_zeros(()), "tokens": tokens}
        end = ps.while_loop(
            lambda state: state["token"] != END, body, start, maximum_iterations=LONGEST
        )
        return end["tokens"].stack(), end["t"], end["score"]

    return Case(plain, traced, [(make.normal(HIDDEN, scale=2.0),) for _ in range(9)])


@table_program(torch.float64)
def beam_search(make: Maker) -> Case:
    """Beams kept as parents and tokens per step in TensorArrays, then walked back."""
    decoder = Decoder(make)

    def extend(h: Tensor, token: Tensor, score: Tensor) -> tuple[Tensor, ...]:
        h, log_probabilities = decoder.step(h, token)
        score, position = (score.unsqueeze(1) + log_probabilities).flatten().topk(BEAM)
        parent = position // TOKENS
        return h[parent], position % TOKENS, score, parent

    def begin(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        score = torch.tensor([0.0, -50.0, -100.0], dtype=h.dtype, device=h.device)
        return h.expand(BEAM, HIDDEN), torch.full((BEAM,), 1, device=h.device), score

    def plain(h: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        beams, token, score = begin(h)
        parents, tokens = [], []
        for _ in range(steps):
            beams, token, score, parent = extend(beams, token, score)
            parents.append(parent)
            tokens.append(token)
        best, beam = [], score.argmax()
        for t in reversed(range(steps)):
            best.append(tokens[t][beam])
            beam = parents[t][beam]
        return torch.stack(best).flip(0), score.max()

    @ps.function
    def traced(h: Tensor, steps: Any) -> tuple[Tensor, Tensor]:
        beams, token, score = begin(h)

        def search(t: Any, state: Any, parents: Any, tokens: Any) -> tuple[Any, ...]:
            beams, token, score, parent = extend(*state)
            return t + 1, (beams, token, score), parents.write(t, parent), tokens.write(t, token)

        empty = ps.TensorArray(steps, like=token)
        _, (_, _, score), parents, tokens = ps.while_loop(
            lambda t, *_: t < steps, search, (0, (beams, token, score), empty, empty)
        )

        def walk_back(t: Any, beam: Tensor, best: Any) -> tuple[Any, ...]:
            best = best.write(t, tokens.read(t)[beam])
            return t - 1, parents.read(t)[beam], best

        beam = score.argmax()
        best = ps.TensorArray(steps, like=beam)
        *_, best = ps.while_loop(lambda t, *_: t >= 0, walk_back, (steps - 1, beam, best))
        return best.stack(), score.max()

    return Case(plain, traced, [(make.normal(HIDDEN), n) for n in (1, 3, 4, 2, 6, 4)])
