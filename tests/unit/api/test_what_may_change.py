"""What may change between calls and is seen by the next one; what differs between instances."""

import pytest
import torch
from torch import nn

import penstock as ps
from penstock.errors import ArgumentError


@pytest.mark.parametrize(
    "cut", [slice(None, 20), slice(-20, None), slice(7, None), slice(1, 30, 3)]
)
def test_a_fixed_cut_holds_for_short_and_long_sequences(cut):
    f = ps.function(lambda x: x[cut].sum())
    columns = [torch.arange(float(n)) for n in (5, 30, 12, 60)]
    assert [y.item() for y in f.map(columns)] == [x[cut].sum().item() for x in columns]
    assert [f(x).item() for x in columns] == [x[cut].sum().item() for x in columns]


def test_a_fixed_cut_cuts_the_gradient_too():
    f = ps.function(lambda x: x[:20].sum())
    f(torch.ones(5))
    x = torch.ones(60, requires_grad=True)
    f(x).backward()
    assert x.grad.sum() == 20


@pytest.mark.parametrize("call", [lambda x: x.chunk(4)[-1].sum(), lambda x: x.squeeze() * 2])
def test_calls_that_cut_by_size_are_made_for_each_size(call):
    columns = [torch.ones(1), torch.ones(6), torch.ones(40)]
    for actual, x in zip(ps.function(call).map(columns), columns, strict=True):
        torch.testing.assert_close(actual, call(x))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)
        self.act = torch.tanh
        self.scales = [torch.ones(2)]

    @ps.function
    def forward(self, x):
        return self.act(self.head(x)) * self.scales[0]


def test_a_replaced_submodule_function_or_tensor_is_seen():
    model, x = Head(), torch.ones(2)
    model(x)
    model.head = nn.Linear(2, 2)
    y = model(x)
    torch.testing.assert_close(y, torch.tanh(model.head(x)))
    y.sum().backward()
    assert model.head.weight.grad is not None
    model.act = torch.sin
    model.scales[0] = torch.full((2,), 3.0)
    torch.testing.assert_close(model(x), torch.sin(model.head(x)) * 3)


def test_a_hook_added_later_is_seen():
    model, x = Head(), torch.ones(2)
    before = model(x)
    model.head.register_forward_hook(lambda module, given, output: output * 0)
    assert not torch.equal(before, model(x))
    assert torch.equal(model(x), torch.zeros(2))


def test_a_rebound_closure_tensor_is_seen():
    weight = torch.tensor(1.0)

    @ps.function
    def f(x):
        return x * weight

    assert f(torch.tensor(2.0)) == 2
    weight = torch.tensor(5.0)
    assert f(torch.tensor(2.0)) == 10


def test_static_values_are_told_apart_by_type_and_contents():
    f = ps.function(lambda x, s: x * s[0])
    assert f(torch.tensor(3), ps.static((1,))).dtype == torch.int64
    assert f(torch.tensor(3), ps.static((1.0,))).dtype == torch.float32
    values = [1.0]
    f(torch.tensor(3.0), ps.static(values))
    values[0] = 5.0
    assert f(torch.tensor(3.0), ps.static(values)) == 15


def test_a_deep_block_trains_in_reasonable_time():
    def deep(x):
        for _ in range(40):
            x = x * x.sin()
        return x

    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    (actual,) = torch.autograd.grad(ps.function(deep)(x).sum(), x)
    (expected,) = torch.autograd.grad(deep(x).sum(), x)
    torch.testing.assert_close(actual, expected)


def test_an_empty_slice_with_a_computed_bound_is_empty():
    f = ps.function(lambda x, i: x[i:])
    assert [len(f(torch.ones(3), i)) for i in (0, 3, 9)] == [3, 0, 0]


def test_embeddings_scaled_by_frequency_are_refused():
    embedding = nn.Embedding(3, 1, scale_grad_by_freq=True)
    with pytest.raises(ArgumentError, match="scale_grad_by_freq counts indices call by call"):
        ps.function(lambda i: embedding(i))(torch.tensor(0))


@pytest.mark.parametrize("given", [nn.Linear(2, 2), torch.sin, 3])
def test_only_python_functions_become_programs(given):
    with pytest.raises(ArgumentError, match="only a Python function or method can be a program"):
        ps.function(given)
