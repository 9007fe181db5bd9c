"""Plans made in one process and run in another: a DataLoader's worker plans, the trainer runs.

A plan is shipped as bytes: its arrays one after the other, in 32 bits where they fit, and the rest
pickled. Who receives it runs it only where its own program and control inputs have the digests that
the plan was made for, and its blocks the same padded forms; otherwise it plans as ever.
"""

from __future__ import annotations

import io
import pickle
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from penstock.plan.call_inputs import Adopted, CallInputs
from penstock.plan.limits import current_limits
from penstock.plan.machine import Steps
from penstock.plan.outcome import Extent, Outcome
from penstock.plan.planners import new_planner
from penstock.plan.schedule import Instruction, Integers, Launch
from penstock.run.inputs import read_inputs
from penstock.run.kept_plans import WINDOW
from penstock.run.padding.function import Ties

if TYPE_CHECKING:
    from penstock.run.engine import Run
    from penstock.run.executable import Executable

#: A plan with more instructions is not worth shipping: it is run while it is made.
MOST_INSTRUCTIONS = 1 << 14

#: The digest of a program, and that of its control inputs.
PlanName = tuple[bytes, bytes]


class ShippedPlan(NamedTuple):
    """A plan as bytes."""

    name: PlanName
    #: Pickled instructions, in which arrays are numbers.
    shape: bytes
    #: All arrays, one after the other, and how long each is.
    integers: np.ndarray[Any, Any]
    lengths: np.ndarray[Any, Any]


class Contents(NamedTuple):
    """A whole plan."""

    instructions: Sequence[Instruction]
    #: The instances of each launch's rows.
    launched: Sequence[Integers]
    outcome: Outcome
    #: How sizes are tied in the padded forms that are launched, by the blocks' numbers.
    ties: Mapping[int, Ties] = MappingProxyType({})

    def planner(self) -> ShippedPlanner:
        """Stands in for the machine that made it."""
        return ShippedPlanner(self, deque(self.launched))


# ---- making --------------------------------------------------------------------------------------


def plan_ahead(run: Run, columns: Any) -> ShippedPlan | None:
    """The plan of a call that is not run; None where inputs alone do not decide it, or where it is
    too long to be shipped.
    """
    executable = run.executable
    if not executable.keeps_plans:
        return None
    limits = current_limits().with_depth(executable.max_depth)
    with torch.no_grad():
        inputs = read_inputs(run, columns)
    planner = new_planner(executable.linked, limits, executable, run.count, 0, run.numbers)
    adopted = planner.take(inputs)
    instructions: list[Instruction] = []
    for item in planner.run():
        instructions.append(item)
        if len(instructions) > MOST_INSTRUCTIONS:
            return None
    ties = _ties_of(executable, instructions)
    contents = Contents(instructions, list(planner.launched), planner.outcome(adopted), ties)
    return _pack((signature(executable), inputs.digest(limits, WINDOW)), contents)


def _ties_of(executable: Executable, instructions: Sequence[Instruction]) -> dict[int, Ties]:
    launched = {item.block for item in instructions if isinstance(item, Launch)}
    padded = {block.number: block.ties for block in executable.padded.values()}
    return {
        number: ties for number, ties in padded.items() if number in launched and ties is not None
    }


_signatures: WeakKeyDictionary[Any, bytes] = WeakKeyDictionary()


def signature(executable: Executable) -> bytes:
    """The digest of what a plan refers to: two programs with one digest can run one plan."""
    found = _signatures.get(executable)
    if found is None:
        facts = (str(executable.graph), executable.default_dtype, executable.block_names)
        found = _signatures[executable] = sha256(repr(facts).encode()).digest()
    return found


class _Packer(pickle.Pickler):
    """Pickles all but arrays of integers, which it collects."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.arrays: list[Integers] = []

    def persistent_id(self, item: Any) -> int | None:
        """The number of an array."""
        if type(item) is not np.ndarray or item.dtype != np.int64 or item.ndim != 1:
            return None
        self.arrays.append(item)
        return len(self.arrays) - 1


def _pack(name: PlanName, contents: Contents) -> ShippedPlan:
    file = io.BytesIO()
    packer = _Packer(file)
    packer.dump(contents)
    integers = np.concatenate([np.empty(0, np.int64), *packer.arrays])
    narrow = integers.astype(np.int32)
    if np.array_equal(narrow, integers):
        integers = narrow
    lengths = np.array([len(array) for array in packer.arrays], np.int32)
    return ShippedPlan(name, file.getvalue(), integers, lengths)


# ---- running -------------------------------------------------------------------------------------


class _Unpacker(pickle.Unpickler):
    """Puts arrays back."""

    def __init__(self, plan: ShippedPlan) -> None:
        super().__init__(io.BytesIO(plan.shape))
        self.ends = np.cumsum(plan.lengths).tolist()
        self.integers = plan.integers.astype(np.int64)

    def persistent_load(self, number: int) -> Integers:
        """The array of that number."""
        start = self.ends[number - 1] if number else 0
        return self.integers[start : self.ends[number]]


@dataclass(slots=True)
class ShippedPlanner:
    """Stands in for a machine: hands out what another one has planned."""

    contents: Contents
    launched: deque[Integers]
    has_drawn: bool = False

    @property
    def firings(self) -> int:
        """How many nodes have fired, where it was planned."""
        return self.contents.outcome.firings

    @property
    def spaces(self) -> Sequence[Extent]:
        """The arenas."""
        return self.contents.outcome.extents

    def take(self, inputs: CallInputs) -> Adopted:
        """Where the inputs go."""
        return self.contents.outcome.adopted

    def run(self) -> Steps:
        """All instructions."""
        yield from self.contents.instructions

    def outcome(self, adopted: Adopted) -> Outcome:
        """What the plan leaves behind."""
        return self.contents.outcome


_at_hand: ContextVar[Mapping[PlanName, ShippedPlan] | None] = ContextVar("plans", default=None)


@contextmanager
def shipped_plans(plans: Sequence[ShippedPlan]) -> Iterator[None]:
    """Calls inside may run these plans."""
    token = _at_hand.set({plan.name: plan for plan in plans})
    try:
        yield
    finally:
        _at_hand.reset(token)


def has_shipped_plans() -> bool:
    """Whether plans that were made elsewhere are at hand."""
    return bool(_at_hand.get())


def find_shipped(executable: Executable, key: bytes) -> ShippedPlanner | None:
    """The plan that was made elsewhere for this program and these control inputs, if there is."""
    plans = _at_hand.get()
    plan = plans.get((signature(executable), key)) if plans else None
    if plan is None:
        return None
    contents: Contents = _Unpacker(plan).load()
    padded = {block.number: block for block in executable.padded.values()}
    # Padded forms are made when they are first planned, which here was elsewhere.
    if not all(padded[number].has_form(ties) for number, ties in contents.ties.items()):
        return None
    return contents.planner()
