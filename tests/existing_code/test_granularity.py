"""All granularities give one answer, random numbers included; units are recorded as one step."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import penstock as ps
from tests.existing_code.harness import (
    GRANULARITIES,
    MAPS,
    WAYS,
    Maker,
    compare,
    plainly,
    under_set_eager,
)
from tests.existing_code.programs.recursion import ChildSum, trees

pytestmark = pytest.mark.usefixtures("unchanged_torch")


class Dropping(nn.Module):
    """Dropout as a module, as a function and inside a loop."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.4)

    def forward(self, xs):
        h = torch.zeros(4)
        for x in xs:
            h = self.drop(torch.tanh(self.layer(x + h)))
        return F.dropout(h, 0.3, training=self.training) + torch.rand(4) * torch.randn_like(h)


def seeded(way, fn, *columns):
    torch.manual_seed(3)
    return way(fn, *columns)


RANDOM_WAYS = {**MAPS, "set_eager": under_set_eager}


@pytest.mark.parametrize("way", RANDOM_WAYS)
def test_random_numbers_are_the_same_in_every_granularity_and_under_set_eager(way):
    make = Maker()
    model, rows = make.module(Dropping()), make.sentences((2, 4, 3), 4)
    expected = seeded(MAPS["op"], model, rows)
    found = seeded(RANDOM_WAYS[way], model, rows)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("way", RANDOM_WAYS)
def test_random_gradients_are_the_same_in_every_granularity(way):
    def gradients(mode):
        make = Maker()
        model, rows = make.module(Dropping()), make.sentences((2, 4, 3), 4)
        sum(y.sum() for y in seeded(mode, model, rows)).backward()
        return [leaf.grad for leaf in make.leaves]

    torch.testing.assert_close(
        gradients(RANDOM_WAYS[way]), gradients(MAPS["op"]), rtol=1e-9, atol=1e-11
    )


@pytest.mark.parametrize("way", MAPS)
def test_a_seed_makes_a_map_repeatable_and_the_next_one_differs(way):
    drop, rows = nn.Dropout(0.5), [torch.ones(30), torch.ones(30)]
    first = seeded(MAPS[way], drop, rows)
    other = MAPS[way](drop, rows)
    again = seeded(MAPS[way], drop, rows)
    torch.testing.assert_close(first, again)
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("way", MAPS)
def test_a_draw_does_not_depend_on_the_other_instances(way):
    def run(x, n):
        for _ in range(n):
            x = F.dropout(x, 0.5)
        return x

    rows = [torch.ones(20)] * 3
    together = seeded(MAPS[way], run, rows, [1, 3, 2])
    longer = seeded(MAPS[way], run, rows, [3, 3, 1])
    torch.testing.assert_close(together[1], longer[1])


@pytest.mark.parametrize("way", MAPS)
def test_dropout_scales_what_it_keeps(way):
    (dropped,) = MAPS[way](nn.Dropout(0.25), [torch.ones(400)])
    assert set(dropped.unique().tolist()) <= {0.0, 1 / 0.75}
    assert 240 < int((dropped > 0).sum()) < 360


@pytest.mark.parametrize("way", WAYS)
def test_child_sum_over_different_arities_agrees(way):
    def build(make):
        return make.module(ChildSum(7, 2, 3)), trees() * 2

    compare(build, WAYS[way])


def launches(fn, *columns, granularity):
    with torch.no_grad(), ps.profile() as run:
        ps.map(fn, *columns, granularity=granularity)
    return len(run.launches)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_launches_do_not_grow_with_the_number_of_instances(granularity):
    model = Maker().module(ChildSum(7, 2, 3))
    few = launches(model, trees(), granularity=granularity)
    many = launches(model, trees() * 6, granularity=granularity)
    assert many <= few


def test_coarser_granularity_launches_less():
    model, forest = Maker().module(ChildSum(7, 2, 3)), trees()
    counts = [launches(model, forest, granularity=name) for name in ("op", "module")]
    assert counts[1] <= counts[0]


def test_a_unit_is_one_launch_for_all_rows():
    w = torch.eye(3)

    @ps.unit
    def cell(x):
        a, b = torch.tanh(x @ w), torch.sigmoid(x @ w)
        return a * b + x

    rows = Maker().tensors(5, 3, grad=False)
    ps.map(cell, rows)
    with ps.profile() as run:
        found = ps.map(lambda x: cell(cell(x)), rows, granularity="module")
    torch.testing.assert_close(found, plainly(lambda x: cell(cell(x)), rows))
    assert len(run.launches) == 2


@pytest.mark.parametrize("way", WAYS)
def test_a_unit_agrees_as_function_method_and_with_structures(way):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 6)

        @ps.unit
        def step(self, x, state, *, scale=1.0):
            h, c = state
            i, f, o = self.layer(torch.cat([x, h])).chunk(3)
            c = f.sigmoid() * c + i.tanh() * scale
            return {"state": (o.sigmoid() * c.tanh(), c), "gate": o}

        def forward(self, xs):
            state = torch.zeros(2), torch.zeros(2)
            for t, x in enumerate(xs):
                state = self.step(x, state, scale=float(t % 2 + 1))["state"]
            return state

    def build(make):
        return make.module(Cell()), make.sentences((2, 4, 3), 2)

    compare(build, WAYS[way])


@pytest.mark.parametrize("way", WAYS)
def test_a_unit_that_reads_a_value_is_right(way):
    @ps.unit
    def fold(x):
        return x * 2 if x.sum() > 0 else x - 1

    def build(make):
        return lambda x: fold(fold(x)), make.tensors(4, 2)

    compare(build, WAYS[way])


@pytest.mark.parametrize("way", WAYS)
def test_a_unit_that_changes_its_argument_is_right(way):
    @ps.unit
    def bump(x):
        x += 1
        return x * 2

    def build(make):
        def run(x):
            y = x * 3
            z = bump(y)
            return y, z

        return run, make.tensors(3, 2)

    compare(build, WAYS[way])


def test_a_unit_outside_a_scope_is_the_function():
    @ps.unit
    def double(x, times=2):
        """Twice."""
        return x * times

    assert double(3) == 6
    assert double.__name__ == "double"
    assert double.__doc__ == "Twice."
    assert double(torch.ones(1), times=4).item() == 4.0


def test_units_with_other_static_arguments_are_apart():
    @ps.unit
    def power(x, exponent, kind):
        return x**exponent if kind == "a" else -(x**exponent)

    columns = Maker().tensors(4, 2), [1, 2, 2, 3], ["a", "b", "a", "b"]
    torch.testing.assert_close(ps.map(power, *columns), plainly(power, *columns))


def test_the_explanation_of_a_map_says_something():
    with ps.profile() as run:
        ps.map(ChildSum(7, 2, 3), trees())
    assert isinstance(run.explain(), str)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_batching_takes_a_granularity(granularity):
    model, rows = Maker().module(nn.GRUCell(2, 2)), Maker().tensors(3, 1, 2)
    with ps.batching(granularity=granularity):
        found = [model(row) for row in rows]
    torch.testing.assert_close(found, [model(row) for row in rows], rtol=1e-9, atol=1e-11)
