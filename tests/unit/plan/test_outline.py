"""Outlines of plans, and templates with room for many of them."""

import numpy as np
import pytest

from penstock.plan.outline import Stage, fit, launches_of, outline_of, roomy, widened
from penstock.plan.schedule import Chunk, Copy, Hosted, Launch, Picks, Shared, Span

LEAF, NODE, TOP = (0, (), (0,)), (1, (("slots", 0),), (0,)), (2, (("slots", 0),), (1,))


def stages(*rows):
    """A leaf, nodes and a top."""
    likenesses = [LEAF, *[NODE] * (len(rows) - 2), TOP]
    return tuple(map(Stage, likenesses, rows))


def test_an_outline_names_what_is_read_and_written():
    picks = Picks(3, np.array([4, 1]))
    launch = Launch(7, 2, (picks, Shared(5)), (Span(2, 0, 2),))
    outline = outline_of([launch])
    assert outline == (Stage((7, (("slots", 3), ("shared", 5)), (2,)), 2),)


@pytest.mark.parametrize(
    "launch",
    [
        Launch(0, 2, (Hosted(np.zeros(2)),), (Span(0, 0, 2),)),
        Launch(0, 2, (Span(0, 0, 4, length=2),), (Span(0, 4, 2),)),
        Launch(0, 2, (Span(0, 0, 2),), (Span(0, 0, 2, is_whole=True),)),
        Launch(0, 0, (Span(0, 0, 0),), (Span(0, 0, 0),)),
    ],
)
def test_launches_that_are_not_rows_of_arenas_have_no_outline(launch):
    assert outline_of([launch]) is None


def test_a_plan_that_copies_has_no_launches_alone():
    launch = Launch(0, 1, (), (Span(0, 0, 1),))
    assert launches_of([Chunk(0, 0, 8), launch]) == [launch]
    assert launches_of([launch, Copy(Span(0, 0, 1), Span(0, 1, 1))]) is None


def test_a_plan_takes_the_first_stages_that_have_room():
    template = stages(100, 40, 60, 20, 10)
    assert fit(template, stages(80, 50, 5, 10)) == [0, 2, 3, 4]
    assert fit(template, stages(101, 5)) is None
    assert fit(template, stages(80, 61, 5)) is None
    assert fit(template, stages(80, 8, 8, 8, 8, 5)) is None
    assert fit((), ()) == []


def test_a_wider_template_has_room_for_all_before():
    plans = [stages(30, 9, 4), stages(60, 20, 8, 2, 5), stages(10, 30, 1)]
    template = ()
    for plan in plans:
        template = widened(template, plan)
    assert all(fit(template, plan) is not None for plan in plans)
    assert len(template) == 5
    assert widened(template, plans[0]) == template


def test_room_grows_with_the_rows_and_lies_on_a_grid():
    rooms = [roomy(rows) for rows in range(1, 2000)]
    assert all(
        rows < room <= 1.25 * rows + 1 + max(8, rows / 4) for rows, room in enumerate(rooms, 1)
    )
    assert rooms == sorted(rooms)
    assert all(room % 8 == 0 for room in rooms)
