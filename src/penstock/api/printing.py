"""`ps.print`: look at a value while a program runs."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.run.printing import print_value


def print_tensor(x: Tensor, label: str = "") -> Tensor:
    """Print a tensor whenever the program comes to this place, and give it back.

    Outside of programs it equals `print(label, x)`, followed by `x`. In a program, Python's own
    `print` shows what is traced, once; this shows values, in every run. A launch prints a line for
    each of its rows, in the order of the rows, which is not always that of the instances. What no
    output needs is not run: go on with what it returns.

    Arguments:
        x: what to print.
        label: what to print before it.

    >>> import torch
    >>> import penstock as ps
    >>> @ps.function
    ... def power(x):
    ...     return ps.foldl(lambda product, x: ps.print(product * x, "so far:"), x, 1.0)
    >>> result = power(torch.tensor([2.0, 3.0, 4.0]))
    so far: tensor(2.)
    so far: tensor(6.)
    so far: tensor(24.)

    Gradients flow through it unchanged. Launches that `ps.memory("recompute")` runs again print
    again.
    """
    # The value depends on the printing, and its gradient does not.
    return torch.where(print_value(x.detach(), label), x, x)
