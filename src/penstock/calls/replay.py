"""Runs the torch calls of a program on real tensors, one call at a time.

A template holds `Operand`s where the call's tensors and dynamic sizes go. Nothing here knows about
batching.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from penstock.calls.autocast import autocast_as
from penstock.calls.structure import flatten
from penstock.calls.torch_names import resolve
from penstock.ir.program import Operand, TorchCall


def call(operation: TorchCall, operands: Sequence[torch.Tensor | int]) -> tuple[torch.Tensor, ...]:
    """The tensors that the call returns, flattened; sizes may be 0-d tensors or ints."""
    values = [
        int(operand) if index in operation.sizes else operand
        for index, operand in enumerate(operands)
    ]
    args = fill(operation.args, values)
    kwargs = {name: fill(template, values) for name, template in operation.kwargs}
    with autocast_as(operation.autocast) if operation.autocast else nullcontext():
        leaves, _ = flatten(resolve(operation.name)(*args, **kwargs))
    return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def fill(template: Any, operands: Sequence[Any]) -> Any:
    """The template with its operands put in."""
    if isinstance(template, Operand):
        return operands[template.index]
    if type(template) is tuple:
        return tuple(fill(item, operands) for item in template)
    if type(template) is slice:
        return slice(
            fill(template.start, operands),
            fill(template.stop, operands),
            fill(template.step, operands),
        )
    return template
