"""Looks inside runs while they are under way, and at what they leave for backward.

The only benchmark code that knows the insides of the library; a change there is followed here.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor

import penstock as ps
from penstock.autodiff.bounded.runs import Bounded
from penstock.autodiff.page import Page
from penstock.autodiff.taped_run import TapedRun
from penstock.capture.lazy import session
from penstock.capture.lazy.fibers import Fibers
from penstock.capture.lazy.library import library
from penstock.plan.limits import current_limits
from penstock.plan.machine import Machine
from penstock.plan.native.kept_code import is_compiled
from penstock.plan.plan_cache import BoundedPlans
from penstock.plan.planners import new_planner, planning
from penstock.plan.policies import POLICIES as _POLICIES
from penstock.plan.schedule import Instruction, Launch
from penstock.run.engine import Run
from penstock.run.inputs import read_inputs
from penstock.run.kept_plans import KeptPlans

Result = TypeVar("Result")

#: The names of all policies for recorded code.
POLICIES = tuple(_POLICIES)


@dataclass(frozen=True)
class Occupancy:
    """What a run holds at one moment."""

    #: Launches of the block that was launched most: the iterations of the one loop in a program.
    iterations: int
    #: Rows of the planner in use, and rows it has room for.
    live_rows: int
    row_capacity: int
    #: Slots of all arenas, free ones included.
    slots: int
    #: Of the whole process.
    resident_bytes: int


@contextmanager
def watched(look: Callable[[Occupancy], None]) -> Iterator[None]:
    """`look` is called whenever a run inside has carried out a window of instructions."""
    carry_out = Run._carry_out
    launches: Counter[int] = Counter()

    def carry_out_and_look(run: Run, window: list[Instruction]) -> Any:
        answer = carry_out(run, window)
        launches.update(item.block for item in window if isinstance(item, Launch))
        look(_occupancy(run, max(launches.values(), default=0)))
        return answer

    with patch.object(Run, "_carry_out", carry_out_and_look), planning_anew(), planning("never"):
        yield


@contextmanager
def planning_anew() -> Iterator[None]:
    """Calls of programs made inside do not find the plans of earlier ones, nor replace them; where
    the native planner has been compiled, it plans them, and as no plan comes again, none is kept:
    all as in a process that has run for a while. What does so is set by hand: mock would take a
    thirtieth of the smallest calls.
    """
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in _FORGETFUL]
    for owner, name, function in _FORGETFUL:
        setattr(owner, name, function)
    try:
        with planning("always" if _is_compiled() else "auto"):
            yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


#: Where no plan is found or kept, the methods that are others.
_FORGETFUL: tuple[tuple[type, str, Callable[..., object]], ...] = (
    (BoundedPlans, "find", lambda plans, key: None),
    (BoundedPlans, "keep", lambda plans, key, plan, size=None: None),
    (KeptPlans, "is_worth_keeping", lambda plans, key: False),
)


def _is_compiled() -> bool:
    """Whether there is a native planner, looked for on disk until there is one: looking takes
    longer than planning a tree.
    """
    global _has_native
    _has_native = _has_native or is_compiled()
    return _has_native


_has_native = False


def planner_of(program: ps.Function, column: list[Any]) -> Callable[[], int]:
    """Plans a map over a column that is bound and read already; how many launches there are."""
    batch = program._bind_columns([column], {}, len(column))
    executable = program._runs.executable(program._runs.entry_for(batch))
    run = Run(executable, [], len(column), is_dry=True)
    inputs = read_inputs(run, [each.values for each in batch.inputs])
    limits = current_limits().with_depth(executable.max_depth)

    def plan() -> int:
        planner = new_planner(executable.linked, limits, executable, len(column), 0, None)
        planner.take(inputs)
        return sum(isinstance(item, Launch) for item in planner.run())

    return plan


def planned_anew(call: Callable[[], Result]) -> Callable[[], Result]:
    """The same call, which does not find its plan: a fresh batch has a fresh structure."""

    def planned() -> Result:
        with planning_anew():
            return call()

    return planned


def _occupancy(run: Run, iterations: int) -> Occupancy:
    machine = run.machine
    assert isinstance(machine, Machine)
    return Occupancy(
        iterations=iterations,
        live_rows=machine.live_rows,
        row_capacity=sum(rows.capacity for rows in machine.rows),
        slots=sum(space.end for space in machine.spaces),
        resident_bytes=resident_bytes(),
    )


def resident_bytes() -> int:
    """The process's memory now; its peak where the system does not tell more."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()


def taped_tensors(output: Tensor) -> list[Tensor]:
    """What the calls behind an output have saved for their backward halves."""
    made = [node.made for node in _graph_nodes(output) if hasattr(node, "made")]
    entries = [entry for call in made for entry in call.run.tape.entries]
    return [saved for entry in entries if isinstance(entry, Page) for saved in entry.saved]


def most_saved_bytes(call: Callable[[], Any]) -> int | None:
    """Bytes that were saved for backward at most, in the calls of programs that `call` makes; None
    where it makes none.
    """
    runs: list[TapedRun] = []
    kept: list[int] = []
    finish = TapedRun.finish

    def look(run: TapedRun) -> None:
        finish(run)
        runs.append(run)
        kept.append(run.saved_bytes())

    with patch.object(TapedRun, "finish", look):
        call()
    most = [run.strategy.store.peak if isinstance(run, Bounded) else 0 for run in runs]
    return max(*most, *kept) if runs else None


def _graph_nodes(output: Tensor) -> Iterator[Any]:
    """The nodes of the autograd graph, each once."""
    seen, work = set(), [output.grad_fn]
    while work:
        node = work.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            work.extend(above for above, _ in node.next_functions)


def storage_bytes(tensors: Iterable[Tensor], *, without: Iterable[Tensor]) -> int:
    """The memory behind tensors, shared memory counted once, that of `without` not at all."""
    known = {tensor.untyped_storage().data_ptr() for tensor in without}
    storages = {each.data_ptr(): each for each in map(torch.Tensor.untyped_storage, tensors)}
    return sum(each.nbytes() for place, each in storages.items() if place not in known)


@contextmanager
def policy(name: str) -> Iterator[None]:
    """Eager code that is mapped inside chooses its launches by this policy."""
    token = session.policy.set(name)
    try:
        yield
    finally:
        session.policy.reset(token)


def forget_plans() -> None:
    """Empty the cache of plans of recorded code."""
    library.plans.clear()


def switch_fibers(instances: int, waits: int) -> None:
    """Run fibers that do nothing but wait, each some times."""

    def wait() -> None:
        for _ in range(waits):
            fibers.wait(None)

    fibers = Fibers(lambda requests: None)
    fibers.run([wait] * instances)
