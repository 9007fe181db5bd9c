"""Schedules are plain data: they can be compared, pickled and read, and are the same every time."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import penstock as ps
from penstock.data import Tree
from penstock.demo import TreeLSTM
from penstock.plan.schedule import (
    Chunk,
    Hosted,
    Kind,
    Launch,
    Picks,
    Read,
    Schedule,
    Shared,
    Span,
    concatenate,
    consecutive,
    pick,
)


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def small_schedule(**changes) -> Schedule:
    operands = (Picks(0, integers(3, 1)), Shared(4), Hosted(integers(5, 6)))
    launch = Launch(0, 2, operands, (Span(0, 2, 2),))._replace(**changes)
    return Schedule(
        [Chunk(0, 0, 8), launch, Read((Span(0, 2, 2),))],
        [Kind("float32", (3,), "cpu")],
        ("f:mul",),
    )


def test_equal_schedules_have_equal_digests():
    assert small_schedule().digest() == small_schedule().digest()
    assert len(small_schedule().digest()) == 16


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 3},
        {"block": 1},
        {"operands": (Picks(0, integers(1, 3)), Shared(4), Hosted(integers(5, 6)))},
        {"operands": (Picks(0, integers(3, 1)), Shared(4), Hosted(np.array([5, 6], np.int32)))},
        {"operands": (Picks(0, integers(3, 1)), Shared(5), Hosted(integers(5, 6)))},
        {"targets": (Span(0, 4, 2),)},
    ],
)
def test_any_difference_changes_the_digest(change):
    assert small_schedule(**change).digest() != small_schedule().digest()


def test_a_schedule_survives_pickling():
    schedule = small_schedule()
    assert pickle.loads(pickle.dumps(schedule)).digest() == schedule.digest()


def test_a_schedule_prints_its_launches():
    assert str(small_schedule()).splitlines() == [
        "schedule: 1 launches, 1 arenas",
        "  launch f:mul  rows 2",
        "  read   2 values",
    ]
    assert small_schedule().count("mul") == 1
    assert small_schedule().count("add") == 0


@pytest.mark.parametrize(
    ("slots", "is_run"),
    [
        ((4,), True),
        ((4, 5, 6), True),
        ((), False),
        ((4, 6), False),
        ((6, 5, 4), False),
        ((4, 4, 6), False),
        ((4, 6, 5, 7), False),
    ],
)
def test_a_run_ascends_one_by_one(slots, is_run):
    assert consecutive(integers(*slots)) is is_run
    operand = pick(1, integers(*slots))
    assert isinstance(operand, Span if is_run else Picks)


def test_a_span_names_its_first_slot():
    assert pick(2, integers(4, 5, 6), 3) == Span(2, 4, 3, 3)


def test_one_part_is_not_copied():
    part = integers(1, 2)
    assert concatenate([part]) is part
    assert concatenate(iter([part, integers(3)])).tolist() == [1, 2, 3]


def test_a_program_is_planned_the_same_way_twice():
    model = TreeLSTM(vocabulary=20, embedding=3, hidden=3)
    trees = [Tree.from_nested(nested) for nested in (((1, 2), 3), (4, (5, 6)), 7, ((1, 1), (2, 2)))]
    first, second = (model.forward.schedule(trees) for _ in range(2))
    assert first.digest() == second.digest()
    assert pickle.dumps(first.instructions) == pickle.dumps(second.instructions)


def test_a_plan_from_values_read_back_is_the_same_twice():
    @ps.function
    def halve(x):
        return ps.while_loop(lambda y: y.norm() > 1, lambda y: y / 2, x)

    columns = [2.0**k * torch.ones(2) for k in (5, 0, 3, 9)]
    first, second = (halve.schedule(columns) for _ in range(2))
    assert first.digest() == second.digest()
    assert first.digest() != halve.schedule(columns[::-1]).digest()
