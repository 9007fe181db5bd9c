"""A mixture of experts of which each example asks only a few.

The experts that were chosen are reached through `switch`: all examples that chose one share its
launch, and those that nobody chose cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

import penstock as ps


class MixtureOfExperts(nn.Module):
    """The weighted sum of the k experts that a linear gate scores highest (Shazeer et al., 2017).

    With the scores g = G x + b and the k highest of them, K::

        y = sum over e in K of softmax(g_K)_e * expert_e(x)

    Gradients reach the chosen experts, and the gate through their weights.

    Arguments:
        inputs: the size of x, float[inputs].
        experts: modules from x to tensors of one shape; they may differ in what is inside.
        k: how many each example asks.

    >>> experts = [nn.Linear(4, 3) for _ in range(6)]
    >>> ps.map(MixtureOfExperts(4, experts, k=2), torch.randn(10, 4), out="stack").shape
    torch.Size([10, 3])
    """

    def __init__(self, inputs: int, experts: Iterable[nn.Module], *, k: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(experts)
        self.gate = nn.Linear(inputs, len(self.experts))
        self.k = k
        if not 1 <= k <= len(self.experts):
            raise ValueError(
                f"MixtureOfExperts: k is {k}, and there are {len(self.experts)} experts. "
                "Pass a k from 1 to their number."
            )

    @ps.function
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # a Function, typed as one
        """The sum of what the chosen experts say."""
        scores, chosen = self.gate(x).topk(self.k)

        def ask(item: tuple[Tensor, Tensor]) -> Tensor:
            weight, expert = item
            answer: Tensor = ps.switch(expert, list(self.experts), (x,))
            return weight * answer

        # Elements of one map_fn, so that first and second choices share launches.
        answers: Tensor = ps.map_fn(ask, (torch.softmax(scores, -1), chosen))
        return answers.sum(0)
