"""Sizes that must agree and do not: errors tell real ones, and the first instance to blame."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import penstock as ps
from penstock.errors import ArgumentError

LENGTHS, OTHERS = (4, 5, 6, 7), (4, 5, 8, 7)


def rows(lengths):
    return [torch.randn(length, 3) for length in lengths]


def labels(lengths):
    return [torch.zeros(length, dtype=torch.int64) for length in lengths]


def total(x, y):
    return (x + y).sum()


def loss(x, y):
    return functional.cross_entropy(x, y)


CASES = [(total, rows, RuntimeError), (loss, labels, ValueError)]


@pytest.mark.parametrize("out", ["list", "stack"])
@pytest.mark.parametrize(("plain", "others", "kind"), CASES)
def test_the_sizes_and_the_instance_are_real(plain, others, kind, out):
    with pytest.raises(kind, match=r"6.*8|8.*6") as found:
        ps.function(plain).map(rows(LENGTHS), others(OTHERS), out=out)
    assert "10" not in str(found.value), "sizes that stand for all"
    assert f"in instance 2 of {plain.__name__}.map" in found.value.__notes__
    assert found.value.__context__ is None


@pytest.mark.parametrize(("plain", "others", "kind"), CASES)
def test_a_call_after_calls_of_other_sizes_tells_its_own(plain, others, kind):
    function = ps.function(plain)
    for length in LENGTHS[:2]:
        function(rows([length])[0], others([length])[0])
    with pytest.raises(kind, match=r"6.*8|8.*6") as found:
        function(rows([6])[0], others([8])[0])
    assert "10" not in str(found.value)
    assert found.value.__context__ is None


@pytest.mark.parametrize(("plain", "others", "kind"), CASES)
def test_an_instance_that_fails_leaves_the_function_as_it_was(plain, others, kind):
    function = ps.function(plain)
    for _ in range(2):
        with pytest.raises(kind):
            function.map(rows(LENGTHS), others(OTHERS))
    with ps.profile() as run:
        function.map(rows(LENGTHS), others(LENGTHS))
    assert "cannot be traced for all sizes" not in run.explain()
    assert len(function.schedule(rows(LENGTHS), others(LENGTHS)).launches) <= 2


@pytest.mark.parametrize(("plain", "others", "kind"), CASES)
def test_a_schedule_tells_the_same(plain, others, kind):
    with pytest.raises(kind, match=r"6.*8|8.*6") as found:
        ps.function(plain).schedule(rows(LENGTHS), others(OTHERS))
    assert "10" not in str(found.value)
    assert f"in instance 2 of {plain.__name__}.map" in found.value.__notes__


def test_there_is_no_schedule_where_each_size_is_a_program_of_its_own():
    @ps.function(autograph=False)
    def by_size(x):
        return x.sum() if x.shape[0] in LENGTHS else x

    with pytest.raises(ArgumentError):
        by_size.schedule(rows(LENGTHS))
    assert len(by_size.map(rows(LENGTHS))) == 4
    with pytest.raises(ArgumentError) as found:
        by_size.schedule(rows(LENGTHS))
    assert str(found.value) == (
        "by_size.schedule: the function cannot be traced for all sizes at once.\n"
        "  sizes of instances  4 different\n"
        "  schedules           one for each\n"
        "Give instances of one size; map runs those of each size by themselves."
    )
    assert len(by_size.schedule(rows([4, 4])).launches) == 1
