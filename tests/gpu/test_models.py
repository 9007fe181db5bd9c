"""The models of penstock.nn on a GPU: the values and gradients that they have on the CPU."""

import pytest
import torch
from torch.utils import _pytree as pytree

import penstock as ps
from tests.unit.nn.models import NAMES, make_case

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def run(name, device):
    """All results on the CPU, and the gradients of the parameters."""
    model, examples, _ = make_case(name)
    model.to(device)
    examples = pytree.tree_map(
        lambda leaf: leaf.to(device) if leaf.is_floating_point() else leaf, examples
    )
    leaves = pytree.tree_leaves(ps.map(model, *map(list, zip(*examples, strict=True))))
    sum(leaf.square().sum() for leaf in leaves if leaf.requires_grad).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return [None if tensor is None else tensor.cpu() for tensor in (*leaves, *gradients)]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_computes_the_same_on_a_gpu(name):
    for found, expected in zip(run(name, "cuda"), run(name, "cpu"), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
