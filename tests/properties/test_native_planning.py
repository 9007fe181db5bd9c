"""The native machine makes the schedule of the plain one, byte for byte, for random programs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

import penstock as ps
from penstock.errors import PenstockError
from penstock.plan.limits import limits
from penstock.plan.planners import planning
from penstock.run.fused.binding import are_apart
from penstock.testing.programs import as_function
from tests.properties.test_random_programs import programs_with_instances

pytest.importorskip("numba")


def schedule_of(function, rows, mode, bounds):
    """The digest of a schedule with its firings, or the text of what went wrong."""
    with planning(mode), limits(**bounds), torch.no_grad():
        try:
            schedule = function.schedule(*map(list, zip(*rows, strict=True)))
        except (PenstockError, RuntimeError, IndexError, ZeroDivisionError) as error:
            return str(error)
    assert all(map(are_apart, schedule.launches)), "compiled launches rely on it"
    return schedule.digest(), schedule.firings


@pytest.mark.parametrize("bounds", [{}, {"live_rows": 8, "loop_rows": 4, "admitted_rows": 2}])
@settings(report_multiple_bugs=False, deadline=None)
@given(drawn=programs_with_instances())
def test_both_machines_make_one_schedule(bounds, drawn):
    program, rows = drawn
    function = ps.function(as_function(program))
    plain = schedule_of(function, rows, "never", bounds)
    assert schedule_of(function, rows, "always", bounds) == plain
