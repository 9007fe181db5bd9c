"""A `ps.function` with control flow is one step of the eager code that calls it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import penstock as ps

COUNTS = [1, 3, 0, 5, 2, 1]

weight = nn.Parameter(
    torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 0.5
)


@ps.function
def repeat(x, n):
    while n > 0:
        x = torch.tanh(x @ weight)
        n = n - 1
    return x


@ps.function
def power(x, n):
    if n <= 0:
        return x
    return x * torch.sin(power(x, n - 1))


@ps.function
def choose(x, n):
    return ps.cond(n > 1, lambda: (x * 2, n), lambda: (x @ weight, n + 1))


def numbers():
    generator = torch.Generator().manual_seed(3)
    made = torch.randn(len(COUNTS), 4, generator=generator, dtype=torch.float64)
    return [row.clone().requires_grad_() for row in made]


def counts():
    return [torch.tensor(count) for count in COUNTS]


def plainly(fn, *columns):
    return [fn(*row) for row in zip(*columns, strict=True)]


def gradients(results, rows):
    losses = [result.sum() * (k + 1.5) for k, result in enumerate(results)]
    return torch.autograd.grad(sum(losses), [weight, *rows])


def outer_launches(profile, name):
    events = [event for event in profile.launches if not event.is_backward]
    return [event for event in events if event.call.name == name]


def with_a_loop(x, n):
    return (repeat(x * 2, n) + 1).sum()


def with_recursion(x, n):
    return power(x, n) @ weight


def with_several_outputs(x, n):
    y, m = choose(x, n)
    return y * m


def with_a_number(x, n):
    return repeat(x, 3) * n


def one_into_the_other(x, n):
    return power(repeat(x, n), torch.tensor(2))


PROGRAMS = [with_a_loop, with_recursion, with_several_outputs, with_a_number, one_into_the_other]


@pytest.mark.parametrize("granularity", ["op", "module", "auto", "graph"])
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_values_and_gradients_are_those_of_the_plain_loop(fn, granularity):
    rows, expected_rows = numbers(), numbers()
    found = ps.map(fn, rows, counts(), granularity=granularity)
    expected = plainly(fn, expected_rows, counts())
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, rows), gradients(expected, expected_rows))


@pytest.mark.parametrize("granularity", ["module", "auto", "graph"])
@pytest.mark.parametrize("fn", [repeat, power], ids=repr)
def test_calls_of_all_instances_are_one_launch(fn, granularity):
    def calling(x, n):
        return fn(x, n)

    with ps.profile() as profile:
        ps.map(calling, numbers(), counts(), granularity=granularity)
    (launch,) = outer_launches(profile, "calling")
    assert launch.rows == len(COUNTS)


def test_gradients_of_gradients_are_those_of_the_plain_loop():
    def second(results, rows):
        asked = [weight, *rows]
        first = torch.autograd.grad(sum(results), asked, create_graph=True)
        losses = sum((grad**3).sum() for grad in first)
        return torch.autograd.grad(losses, asked, materialize_grads=True)

    rows, expected_rows = numbers(), numbers()
    found = second(ps.map(with_a_loop, rows, counts()), rows)
    expected = second(plainly(with_a_loop, expected_rows, counts()), expected_rows)
    torch.testing.assert_close(found, expected)


def test_instances_can_go_backward_one_by_one():
    rows, expected_rows = numbers(), numbers()
    found = ps.map(with_a_loop, rows, counts())
    for result in found:
        result.backward()
    for result in plainly(with_a_loop, expected_rows, counts()):
        result.backward()
    weight.grad = None
    for row, expected in zip(rows, expected_rows, strict=True):
        torch.testing.assert_close(row.grad, expected.grad)


def test_without_gradients_nothing_asks_for_them():
    def quiet(x, n):
        with torch.no_grad():
            y = repeat(x, n)
        return x * y, y

    rows, expected_rows = numbers(), numbers()
    found = ps.map(quiet, rows, counts())
    expected = plainly(quiet, expected_rows, counts())
    assert not found[0][1].requires_grad
    torch.testing.assert_close(found, expected)
    mine = torch.autograd.grad(sum(y.sum() for y, _ in found), rows)
    theirs = torch.autograd.grad(sum(y.sum() for y, _ in expected), expected_rows)
    torch.testing.assert_close(mine, theirs)


def test_methods_see_the_parameters_of_their_object():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4).double()

        @ps.function
        def forward(self, x, n):
            while n > 0:
                x = torch.tanh(self.layer(x))
                n = n - 1
            return x

    torch.manual_seed(0)
    cells = [Cell(), Cell()]

    def calling(x, n):
        return cells[0](x, n) + cells[1](x, n)

    rows = numbers()
    found = ps.map(calling, rows, counts())
    expected = plainly(calling, rows, counts())
    torch.testing.assert_close(found, expected)
    asked = [p for cell in cells for p in cell.parameters()]
    mine = torch.autograd.grad(sum(y.sum() for y in found), asked)
    theirs = torch.autograd.grad(sum(y.sum() for y in expected), asked)
    torch.testing.assert_close(mine, theirs)


def test_a_parameter_that_was_replaced_is_read_anew():
    holder = nn.Module()
    holder.scale = nn.Parameter(torch.tensor(2.0))

    @ps.function
    def scaled(x, n):
        while n > 0:
            x = x * holder.scale
            n = n - 1
        return x

    def calling(x, n):
        return scaled(x, n)

    rows, twos = [torch.ones(2), torch.ones(2)], [torch.tensor(2), torch.tensor(1)]
    ps.map(calling, rows, twos)
    holder.scale = nn.Parameter(torch.tensor(3.0))
    found = ps.map(calling, rows, twos)
    torch.testing.assert_close(found, [torch.full((2,), 9.0), torch.full((2,), 3.0)])


def test_other_shapes_are_other_steps():
    def calling(x, n):
        return repeat_elements(x, n) * 2

    @ps.function
    def repeat_elements(x, n):
        while n > 0:
            x = torch.sin(x)
            n = n - 1
        return x

    rows = [torch.ones(size) for size in (2, 3, 5, 2, 3, 5)]
    found = ps.map(calling, rows, counts())
    torch.testing.assert_close(found, plainly(calling, rows, counts()))


def test_random_programs_run_as_they_are():
    @ps.function
    def dropping(x, n):
        while n > 0:
            x = F.dropout(x, 0.5)
            n = n - 1
        return x

    def calling(x, n):
        return dropping(x, n)

    def seeded(granularity):
        torch.manual_seed(4)
        return ps.map(calling, numbers(), counts(), granularity=granularity)

    torch.testing.assert_close(seeded("auto"), seeded("op"))


def test_reading_what_a_program_has_made_waits_for_it():
    def calling(x, n):
        y = repeat(x, n)
        return y * y.sum().item()

    rows = [row.detach() for row in numbers()]
    torch.testing.assert_close(ps.map(calling, rows, counts()), plainly(calling, rows, counts()))


def test_an_instance_whose_program_fails_leaves_the_others_alone():
    @ps.function
    def pick(x, n):
        while n < 2:
            n = n + 1
        return x[n]

    def calling(x, n):
        return pick(x, n) * 2

    rows = [torch.arange(4.0)] * 3
    places = [torch.tensor(place) for place in (1, 9, 3)]
    found = ps.map(calling, rows, places, on_error="return")
    assert isinstance(found[1], IndexError)
    assert [float(found[0]), float(found[2])] == [4.0, 6.0]


def test_steps_inside_a_batching_scope():
    rows, places = numbers(), counts()
    with ps.profile() as profile, ps.batching():
        found = plainly(with_a_loop, rows, places)
    torch.testing.assert_close([x + 0 for x in found], plainly(with_a_loop, rows, places))
    assert len(outer_launches(profile, "batching")) == 4
