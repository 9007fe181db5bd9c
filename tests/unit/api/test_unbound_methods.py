"""`Class.method(object, x)` is the method of that object, in programs and outside of them."""

import pytest
import torch
from torch import nn

import penstock as ps
from penstock.errors import ArgumentError


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    @ps.function
    def forward(self, x):
        if x.sum() > 0:
            return self.step(x)
        return -x

    @ps.function
    def step(self, x):
        return self.linear(x)


class Named(Base):
    """Calls by the name of the class; what that calls is looked up in the object."""

    @ps.function
    def forward(self, x):
        return Base.forward(self, x) * 2

    @ps.function
    def step(self, x):
        return Base.step(self, x) + 1


class BySuper(Base):
    @ps.function
    def forward(self, x):
        return super().forward(x) * 2

    @ps.function
    def step(self, x):
        return super().step(x) + 1


class OfTorch(Base):
    @ps.function
    def forward(self, x):
        if x.sum() > 0:
            return (nn.Linear.forward(self.linear, x) + 1) * 2
        return -x * 2


class Halving(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(0.5))

    @ps.function
    def forward(self, x):
        if x.sum() < 1:
            return x
        return Halving.forward(self, x * self.rate)


class Plain:
    def __init__(self, rate):
        self.rate = rate

    @ps.function
    def scaled(self, x):
        return x * self.rate if x > 0 else x


class PlainMore(Plain):
    @ps.function
    def scaled(self, x):
        return Plain.scaled(self, x) + 1


def expected(model, x):
    return (model.linear(x) + 1) * 2 if x.sum() > 0 else -x * 2


X = [torch.tensor([1.0, 2.0]), torch.tensor([-1.0, 0.5]), torch.tensor([3.0, -1.0])]


@pytest.mark.parametrize("make", [Named, BySuper, OfTorch])
@pytest.mark.parametrize("is_mapped", [False, True])
def test_values_and_gradients_are_those_of_plain_python(make, is_mapped):
    torch.manual_seed(0)
    model = make()
    found = model.forward.map(X) if is_mapped else [model(x) for x in X]
    plain = [expected(model, x) for x in X]
    torch.testing.assert_close(found, plain)
    weights = torch.randn(3, 2)
    parameters = list(model.parameters())
    torch.testing.assert_close(
        torch.autograd.grad((torch.stack(found) * weights).sum(), parameters),
        torch.autograd.grad((torch.stack(plain) * weights).sum(), parameters),
    )


@pytest.mark.parametrize("is_eager", [False, True])
def test_the_method_of_the_named_class_runs_and_not_the_one_that_overrides_it(is_eager):
    torch.manual_seed(0)
    model = Named()
    ps.set_eager(is_eager)
    try:
        torch.testing.assert_close(Base.forward(model, X[0]), model.linear(X[0]) + 1)
        mapped = Base.forward.map(ps.shared(model), X)
    finally:
        ps.set_eager(False)
    torch.testing.assert_close(mapped, [expected(model, x) / 2 for x in X])


def test_a_function_calls_the_methods_of_objects_that_it_closes_over():
    first, second = Named(), BySuper()
    program = ps.function(lambda x: Base.forward(first, x) - Base.forward(second, x))
    plain = [(expected(first, x) - expected(second, x)) / 2 for x in X]
    torch.testing.assert_close(program.map(X), plain)
    second.linear.weight = nn.Parameter(torch.zeros(2, 2))
    plain = [(expected(first, x) - expected(second, x)) / 2 for x in X]
    torch.testing.assert_close(program.map(X), plain)


def test_recursion_by_the_name_of_the_class():
    model = Halving()
    found = model.forward.map([torch.tensor(0.9), torch.tensor(7.0)])
    assert found == [torch.tensor(0.9), torch.tensor(0.875)]
    (gradient,) = torch.autograd.grad(found[1], [model.rate])
    assert gradient == 3 * 7 * 0.25


def test_plain_objects_have_methods_too():
    kept = PlainMore(3)
    x = torch.tensor(2.0)
    assert kept.scaled(x) == 7
    assert kept.scaled.map([x, -x]) == [7, -1]
    assert Plain.scaled(kept, x) == 6
    kept.rate = 4
    assert kept.scaled(x) == 9
    assert Plain.scaled(kept, x) == 8


def test_the_program_of_an_unbound_call_is_that_of_the_object():
    model = Named()
    assert str(Base.step.program(model, X[0])) == str(Base.step.__get__(model).program(X[0]))


def test_an_object_that_has_no_such_method_is_refused():
    with pytest.raises(ArgumentError, match="This argument cannot be traced"):
        Base.forward(nn.Linear(2, 2), X[0])
