"""Recursion that does not end stops at a limit, well before the memory is full."""

from __future__ import annotations

import resource

import pytest
import torch

import penstock as ps
from penstock.errors import ArgumentError, RecursionLimitError
from penstock.plan.limits import limits
from tests.unit.errors.messages import blames_a_marked_line, raised_by, text_of


@ps.function
def chain(i):
    return ps.cond(
        i == 0,
        lambda: i,
        lambda: chain(i - 1) + 1,  # blamed
    )


@ps.function
def twice(i):
    return ps.cond(
        i < 0,
        lambda: i,
        lambda: twice(i + 1) + twice(i + 1),  # blamed
    )


@ps.function
def twice_on_data(x):
    return ps.cond(
        x.sum() < 0,
        lambda: x,
        lambda: twice_on_data(x + 1) + twice_on_data(x + 2),  # blamed
    )


def test_a_recursion_that_is_too_deep_names_function_depth_site_and_instance() -> None:
    with limits(depth=20):
        assert chain.map([3, 19]) == [3, 19]
        error = raised_by(lambda: chain.map([3, 20, 30]))
    assert blames_a_marked_line(error)
    assert text_of(error).splitlines() == [
        "RecursionLimitError: chain: the recursion is too deep; it may have no end.",
        "  at test_recursion_limits.py, in <lambda>",
        "  instance  1",
        "  depth     21 calls",
        "  limit     20 calls (max_depth)",
        "Make sure that every path reaches a base case, or allow more: ps.function(max_depth=...).",
    ]


def test_max_depth_of_a_function_is_its_limit() -> None:
    @ps.function(max_depth=5)
    def short(i):
        return ps.cond(i == 0, lambda: i, lambda: short(i - 1) + 1)

    @ps.function(max_depth=20_000)
    def long(i):
        return ps.cond(i == 0, lambda: i, lambda: long(i - 1) + 1)

    assert short(4) == 4
    assert "limit  5 calls (max_depth)" in str(raised_by(lambda: short(5)))
    assert long(12_000) == 12_000


@pytest.mark.parametrize("depth", [0, -1, 2.5, True, None])
def test_a_max_depth_without_sense_is_refused(depth) -> None:
    with pytest.raises(ArgumentError, match="max_depth must be a whole number of at least 1"):
        ps.function(lambda x: x, max_depth=depth)


@pytest.mark.parametrize("call", [lambda: twice(0), lambda: twice_on_data(torch.ones(2))])
def test_too_many_rows_are_an_error(call) -> None:
    with limits(live_rows=64, admitted_rows=16, most_rows=200):
        error = raised_by(call)
    assert isinstance(error, RecursionLimitError)
    assert blames_a_marked_line(error)
    lines = text_of(error).splitlines()
    assert ": too many calls are running at once; the recursion may have no end." in lines[0]
    assert lines[3].split() == ["limit", "201", "rows"]
    assert lines[4].startswith("Make sure that every path reaches a base case, or map over fewer")


def test_a_long_recursion_over_many_instances_fits_where_its_rows_would_not() -> None:
    with limits(live_rows=64, admitted_rows=16, most_rows=2_000):
        assert chain.map([300] * 50) == [300] * 50


def test_the_default_limits_end_a_doubling_recursion_in_little_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = raised_by(lambda: twice(0))
    assert isinstance(error, RecursionLimitError)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_500_000  # kilobytes


def test_the_default_limits_end_a_plain_recursion() -> None:
    error = raised_by(lambda: chain(-1))
    assert "depth  10001 calls" in str(error)
