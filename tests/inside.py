"""Looks inside calls: every pass verified, every machine at hand after its run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.ir.verify import verify_program
from penstock.ir.verify_graph import verify_graph
from penstock.passes import pipeline
from penstock.plan.machine import Machine
from penstock.plan.placed import PlacedPlanner
from penstock.plan.plan_cache import BoundedPlans
from penstock.run.engine import Run

#: The passes of `pipeline` that make a program or a graph, with what checks it.
CHECKS = {
    "share_computations": verify_program,
    "wrap_entry": verify_program,
    "place_nodes": verify_program,
    "close_row_loops": verify_program,
    "form_blocks": verify_graph,
}


@contextmanager
def verified_passes() -> Iterator[None]:
    """What every pass makes is verified."""
    with pytest.MonkeyPatch.context() as patch:
        for name, verify in CHECKS.items():
            patch.setattr(pipeline, name, _verified(getattr(pipeline, name), verify))
        yield


def _verified(run_pass: Callable[..., Any], verify: Callable[[Any], None]) -> Callable[..., Any]:
    def run_and_verify(*inputs: Any) -> Any:
        made = run_pass(*inputs)
        verify(made)
        return made

    return run_and_verify


@contextmanager
def collected_machines() -> Iterator[list[Machine]]:
    """The machines of all calls made inside, in order."""
    machines: list[Machine] = []
    carry_out = Run.carry_out

    def collect(run: Run, *args: Any, **kwargs: Any) -> Any:
        try:
            return carry_out(run, *args, **kwargs)
        finally:
            if run.machine is not None:
                planner = run.machine
                machines.append(planner.machine if isinstance(planner, PlacedPlanner) else planner)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "carry_out", collect)
        patch.setattr(BoundedPlans, "find", lambda plans, key: None)  # each call has a machine
        yield machines


def assert_no_leak(machines: list[Machine]) -> None:
    """No row, table entry or slot is referred to once inputs and outputs are given up."""
    assert machines
    for machine in machines:
        assert machine.audit() == {"rows": 0, "tables": 0, "slots": 0}
