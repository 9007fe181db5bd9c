"""Each model equals its plain twin, in values and gradients, and is an ordinary module."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.utils import _pytree as pytree

import penstock as ps
from tests.unit.nn.models import NAMES, make_case

#: One of each class.
CLASSES = [name for name in NAMES if "," not in name]


def columns_of(examples):
    return [list(column) for column in zip(*examples, strict=True)]


def leaves_of(results):
    """The tensors of each result, whatever tuple or dict holds them."""
    return [pytree.tree_leaves(result) for result in results]


def loss_of(results):
    """A sum of everything that can have a gradient, each element with a weight of its own."""
    generator = torch.Generator().manual_seed(0)
    leaves = [leaf for result in leaves_of(results) for leaf in result if leaf.requires_grad]
    return sum(
        (torch.rand(leaf.shape, generator=generator, dtype=leaf.dtype) * leaf).sum()
        for leaf in leaves
    )


def gradients_of(results, model, examples):
    floats = [leaf for leaf in pytree.tree_leaves(examples) if leaf.is_floating_point()]
    wanted = [*model.parameters(), *floats]
    return torch.autograd.grad(loss_of(results), wanted, allow_unused=True)


def with_gradients(examples):
    return pytree.tree_map(
        lambda leaf: leaf.clone().requires_grad_() if leaf.is_floating_point() else leaf, examples
    )


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_those_of_plain_code(name):
    model, examples, plain = make_case(name)
    examples = with_gradients(examples)
    mapped = ps.map(model, *columns_of(examples))
    expected = [plain(model, *example) for example in examples]
    for found, wanted in zip(leaves_of(mapped), leaves_of(expected), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    found = gradients_of(mapped, model, examples)
    wanted = gradients_of(expected, model, examples)
    assert any(gradient is not None for gradient in wanted)
    for left, right in zip(found, wanted, strict=True):
        if left is None or right is None:
            # Plain code may reach a tensor with zeros alone; no gradient means the same.
            assert not any(gradient.any() for gradient in (left, right) if gradient is not None)
        else:
            torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CLASSES)
def test_one_example_is_a_plain_call_and_eager_code_agrees(name):
    model, examples, _ = make_case(name)
    expected = ps.map(model, *columns_of(examples))[0]
    with ps.set_eager(True):
        eager = model(*examples[0])
    for found in (model(*examples[0]), eager):
        torch.testing.assert_close(leaves_of([found]), leaves_of([expected]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CLASSES)
def test_copies_and_pickles_compute_the_same_and_share_nothing(name):
    model, examples, _ = make_case(name)
    columns = columns_of(examples)
    expected = leaves_of(ps.map(model, *columns))
    loaded = make_case(name).model
    for parameter in loaded.parameters():
        torch.nn.init.ones_(parameter)
    loaded.load_state_dict(model.state_dict())
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded]
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    for twin in copies:
        torch.testing.assert_close(leaves_of(ps.map(twin, *columns)), expected)


@pytest.mark.parametrize("name", CLASSES)
def test_a_model_moves_to_another_type(name):
    model, examples, _ = make_case(name)
    ps.map(model, *columns_of(examples))
    model.to(torch.float32).eval()
    examples = pytree.tree_map(
        lambda leaf: leaf.float() if leaf.is_floating_point() else leaf, examples
    )
    results = ps.map(model, *columns_of(examples))
    found = {leaf.dtype for result in leaves_of(results) for leaf in result}
    assert found <= {torch.float32, torch.int64}
    assert torch.float32 in found


def test_sub_modules_that_train_otherwise_do_so_inside():
    layers = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)) for _ in range(2)]
    heads = [torch.nn.Linear(4, 3) for _ in layers]
    model = ps.nn.EarlyExit(layers, heads, threshold=0.99)
    xs = torch.ones(6, 4)
    trained = model.exits.map(xs, out="stack")
    assert not torch.equal(trained[0], trained[1])
    answers = model.eval().exits.map(xs, out="stack")
    torch.testing.assert_close(answers, answers[:1].expand_as(answers))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_weights_go_to_torch_layers_and_back(kind):
    ours = getattr(ps.nn, kind)(3, 4, layers=2, bidirectional=True)
    theirs = getattr(torch.nn, kind)(3, 4, num_layers=2, bidirectional=True)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(5, 3)
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_sequence_may_be_empty(kind):
    model = getattr(ps.nn, kind)(3, 4, bidirectional=True)
    (states, last), (longer, _) = ps.map(model, [torch.zeros(0, 3), torch.ones(2, 3)])
    assert states.shape == (0, 8)
    assert longer.shape == (2, 8)
    assert not any(part.any() for part in pytree.tree_leaves(last))
