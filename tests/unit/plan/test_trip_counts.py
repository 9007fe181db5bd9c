"""Rows enter counted loops longest first: carried values of the next iteration are views."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import penstock as ps
from penstock.plan.planners import planning
from penstock.plan.schedule import Span

#: Loops over scalars are part of what is planned here.
pytestmark = pytest.mark.usefixtures("interpreted_loops")

LENGTHS = [3, 7, 1, 0, 7, 5]


@ps.function
def by_while(xs, n):
    i, state = torch.tensor(0), torch.zeros(2)
    while i < len(xs):
        state = torch.tanh(state + xs[i])
        i = i + 1
    return state


@ps.function
def by_for(xs, n):
    state = torch.zeros(2)
    for x in xs:
        state = torch.tanh(state + x)
    return state


@ps.function
def by_range(xs, n):
    state = torch.zeros(2)
    for i in range(n):
        state = torch.tanh(state + xs[i])
    return state


@ps.function
def by_foldl(xs, n):
    return ps.foldl(lambda state, x: torch.tanh(state + x), xs, torch.zeros(2))


@ps.function
def by_scan(xs, n):
    def step(state, x):
        state = torch.tanh(state + x)
        return state, state

    return ps.scan(step, torch.zeros(2), xs)[0]


@ps.function
def from_the_end(xs, n):
    """The counter starts where the input says; the comparison is turned round."""
    i, state = n - n, torch.zeros(2)
    while n > i:
        state = torch.tanh(state + xs[i])
        i = i + 1
    return state


PROGRAMS = [by_while, by_for, by_range, by_foldl, by_scan, from_the_end]


def columns():
    torch.manual_seed(0)
    return [torch.randn(n, 2) for n in LENGTHS], LENGTHS


@pytest.mark.parametrize("mode", ["never", "always"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_carried_values_are_read_as_runs(program, mode):
    with planning(mode):
        launches = program.schedule(*columns()).launches
    assert [launch.rows for launch in launches] == [5, 4, 4, 3, 3, 2, 2]
    for before, launch in pairwise(launches):
        (target,) = before.targets
        assert Span(target.arena, target.start, launch.rows) in launch.operands


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_results_stay_with_their_instances(program):
    sequences, lengths = columns()
    expected = []
    for sequence in sequences:
        state = torch.zeros(2)
        for x in sequence:
            state = torch.tanh(state + x)
        expected.append(state)
    for left, right in zip(program.map(sequences, lengths), expected, strict=True):
        torch.testing.assert_close(left, right)


def test_a_loop_that_computes_its_bound_keeps_the_order_of_rows():
    @ps.function
    def program(x, n):
        i = torch.tensor(0)
        while i < n * 2 - i:
            x = x * 2
            i = i + 1
        return x

    launches = program.schedule(torch.ones(3), [1, 3, 2]).launches
    assert [launch.rows for launch in launches] == [3, 2, 1]
    assert (launches[0].operands[0].start, launches[0].operands[0].count) == (0, 3)
