"""Beam search over a user's step: the likeliest sequence among a few that are kept.

The step is written for one hypothesis. Hypotheses of all examples share its launches, and an
example whose search is over takes no further part.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import penstock as ps


class BeamSearch(nn.Module):
    """Keeps the `width` likeliest hypotheses at each step, until the best of them has ended.

    A hypothesis is a state, a token and a score, the sum of the log-probabilities of its tokens::

        state, logp = step(state, token)                        for each hypothesis
        keep the `width` highest of score + logp, over all hypotheses and tokens

    A hypothesis that has ended stays as it is. Scores never rise, so the search is over as soon as
    the best hypothesis has ended: nothing can overtake it. With a width of 1 this is greedy
    decoding.

    Arguments:
        step: a module from the state of one hypothesis (a tensor, or a nested value of tensors)
            and a token, int64[], to the next state and log-probabilities, float[tokens].
        width: how many hypotheses are kept.
        begin: the token before the first.
        end: the token that ends a hypothesis.
        limit: the most tokens, `end` included.

    It returns the tokens of the best hypothesis, int64[n], and its score. Gradients flow from the
    score.

    >>> class Countdown(nn.Module):
    ...     def forward(self, state, token):
    ...         return state - 1, torch.log_softmax(-(torch.arange(5.0) - state).abs(), -1)
    >>> search = BeamSearch(Countdown(), width=2, begin=4, end=0, limit=9)
    >>> [tokens.tolist() for tokens, score in ps.map(search, torch.tensor([3.0, 1.0]))]
    [[3, 2, 1, 0], [1, 0]]
    """

    def __init__(self, step: nn.Module, *, width: int, begin: int, end: int, limit: int) -> None:
        super().__init__()
        if width < 1 or limit < 0:
            raise ValueError(
                f"BeamSearch: the width is {width} and the limit {limit}. "
                "Keep one hypothesis at least, and allow no negative number of tokens."
            )
        self.step = step
        self.width, self.begin, self.end, self.limit = width, begin, end, limit

    @ps.function
    def forward(self, state: Any) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The tokens and the score of the likeliest sequence that was found."""
        states = pytree.tree_map(lambda part: part.expand(self.width, *part.shape), state)
        token, score = self._first(state)
        length = torch.zeros_like(token)
        parents: list[Tensor] = []
        tokens: list[Tensor] = []
        while token[0] != self.end and len(tokens) < self.limit:
            states, logp = ps.map_fn(lambda kept: self.step(*kept), (states, token))
            score, position = self._candidates(score, token, logp).flatten().topk(self.width)
            parent = position // logp.shape[1]
            # `end` counts once, though a hypothesis that waits for its turn repeats it.
            length = (length + (token != self.end)).index_select(0, parent)
            token = position % logp.shape[1]
            states = pytree.tree_map(lambda part, at=parent: part.index_select(0, at), states)
            parents.append(parent)
            tokens.append(token)
        best: list[Tensor] = []
        place = length.new_zeros(())
        for t in reversed(range(len(tokens))):
            best.append(tokens[t][place])
            place = parents[t][place]
        return torch.stack(best).flip(0)[: length[0]], score[0]

    def _first(self, state: Any) -> tuple[Tensor, Tensor]:
        """Tokens and scores before the first step: all are alike, so only one of them counts."""
        like = next(part for part in pytree.tree_leaves(state) if part.is_floating_point())
        is_first = torch.arange(self.width, device=like.device) == 0
        score = torch.where(is_first, like.new_zeros(()), -math.inf)
        return like.new_full((self.width,), self.begin, dtype=torch.int64), score

    def _candidates(self, score: Tensor, token: Tensor, logp: Tensor) -> Tensor:
        """Scores of all hypotheses with all next tokens; one that has ended only ends again."""
        is_end = torch.arange(logp.shape[1], device=logp.device) == self.end
        ended = torch.where(is_end, score.unsqueeze(1), -math.inf)
        has_ended = (token == self.end).unsqueeze(1)
        return torch.where(has_ended, ended, score.unsqueeze(1) + logp)
