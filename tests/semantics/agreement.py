"""Whether two results agree: same structure, same types, values as close as their dtype allows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from penstock.calls.structure import flatten, leaf_paths
from penstock.capture.tensor_array import TensorArray
from tests.semantics.table import Case

#: Relative and absolute tolerance; dtypes that are not here must agree exactly.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2}


def assert_agree(actual: Any, expected: Any, name: str) -> None:
    """Compare nested values leaf by leaf; an error names the leaf, e.g. `instance 3['h']`."""
    actual_leaves, actual_structure = flatten(actual)
    expected_leaves, expected_structure = flatten(expected)
    assert actual_structure == expected_structure, name
    paths = leaf_paths(expected, name)
    for path, left, right in zip(paths, actual_leaves, expected_leaves, strict=True):
        assert_leaf_agrees(left, right, path)


def assert_leaf_agrees(actual: Any, expected: Any, path: str) -> None:
    """Compare two leaves; plain programs may return Python numbers for tensors."""
    assert not isinstance(actual, TensorArray), f"{path} is an array: stack or read it"
    actual, expected = torch.as_tensor(actual), torch.as_tensor(expected)
    tolerance = TOLERANCES.get(expected.dtype, 0)
    torch.testing.assert_close(
        actual, expected, rtol=tolerance, atol=tolerance, msg=lambda text: f"{path}: {text}"
    )


def gradients(case: Case, outputs: list[Any], seed: int = 7) -> dict[str, Tensor | None]:
    """Gradients of all outputs, scalarised with random weights, by weights and float inputs."""
    targets = dict(case.weights) | dict(float_inputs(case))
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros((), dtype=torch.float64)
    for leaf in flatten(outputs)[0]:
        leaf = torch.as_tensor(leaf)
        weights = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
        if leaf.is_floating_point() and leaf.requires_grad:
            total = total + (leaf * weights.to(leaf.device)).sum().cpu()
    found = torch.autograd.grad(total, list(targets.values()), allow_unused=True)
    return dict(zip(targets, found, strict=True))


def float_inputs(case: Case) -> Iterable[tuple[str, Tensor]]:
    """The floating-point tensors among the instances' arguments, by name; empty ones left out."""
    for path, leaf in zip(
        leaf_paths(case.instances, "instances"), flatten(case.instances)[0], strict=True
    ):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel() > 0:
            yield path, leaf


def ask_for_gradients(case: Case) -> None:
    """Make every floating-point input a tensor that gets a gradient."""
    for _, leaf in float_inputs(case):
        leaf.requires_grad_()
