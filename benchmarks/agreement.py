"""Whether candidates compute the same thing: all their results, gradients included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree


def check_agreement(
    candidates: Mapping[str, Callable[[], Any]],
    reference: str,
    tolerance: float,
    show: Callable[[str], None] = lambda name: None,
) -> None:
    """Call each candidate once; raise where one differs from the reference.

    Differences count relative to the largest element of a tensor: a gradient may be small as a
    whole. `show` is told which one is called, as a first call may take long.
    """
    expected = _pytree.tree_map(_detached, candidates[reference]())
    scales = _pytree.tree_map(_largest, expected)
    for name, call in candidates.items():
        show(name)
        found = _pytree.tree_map(_detached, call())
        try:
            torch.testing.assert_close(
                _scaled(found, scales), _scaled(expected, scales), rtol=tolerance, atol=tolerance
            )
        except (AssertionError, TypeError) as difference:
            raise AssertionError(f"{name} and {reference} disagree: {difference}") from None


def _largest(leaf: Any) -> Any:
    """What a tensor of floating-point numbers is divided by; None for anything else."""
    if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point() or not leaf.numel():
        return None
    largest = leaf.abs().max()
    return torch.where((largest > 0) & largest.isfinite(), largest, 1)


def _scaled(value: Any, scales: Any) -> Any:
    leaves, structure = _pytree.tree_flatten(value)
    divisors = _pytree.tree_leaves(scales)
    if len(leaves) != len(divisors):
        return value
    scaled = [
        leaf / divisor if isinstance(leaf, torch.Tensor) and divisor is not None else leaf
        for leaf, divisor in zip(leaves, divisors, strict=True)
    ]
    return _pytree.tree_unflatten(scaled, structure)


def _detached(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
