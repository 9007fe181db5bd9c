"""Whose state the thread has: a fiber's while it runs, and its own between fibers.

A switch between fibers that change nothing costs one look at the state. A fiber cannot leave while
it is inside something of torch that is one per thread and cannot be put back.
"""

from __future__ import annotations

from itertools import compress
from operator import ne
from typing import Any

import torch
from torch.autograd import forward_ad

from penstock.capture.lazy.thread_state import (
    SavedState,
    ThreadState,
    has_same_modes,
    is_dispatching,
    read_companions,
    read_fields,
    read_state,
)
from penstock.capture.lazy.thread_state_writes import write_state
from penstock.capture.location import user_line
from penstock.errors import WaitError, report

_transform_level = torch._C._functorch.maybe_current_level
_backward_task = torch._C._current_graph_task_id


class Switchboard:
    """Keeps the states of fibers apart, and gives the thread back the one it was found in."""

    def __init__(self) -> None:
        self._state = read_state()
        self._base = SavedState(self._state, read_companions())
        self._depths = _depths()

    def leave(self) -> SavedState | None:
        """Give the thread its own state back; the fiber's, or None where it is the same.

        Raises, and changes nothing, where the fiber is inside something that cannot be put back.
        """
        if (depths := _depths()) != self._depths:
            raise _unsuspendable(next(compress(_DEEP, map(ne, depths, self._depths))))
        return self._give_back(read_fields(), goes_on=True)

    def give_up(self) -> None:
        """Give the thread its own state back; the fiber does not go on."""
        self._give_back(read_fields(), goes_on=False)

    def enter(self, saved: SavedState | None) -> None:
        """Give the thread the state of a fiber that has left."""
        if saved is not None:
            write_state(self._state, saved)

    def _give_back(self, found: tuple[Any, ...], *, goes_on: bool) -> SavedState | None:
        if found == self._state:
            return None
        state = ThreadState._make(found)
        if goes_on and is_dispatching(state):
            raise _unsuspendable("a __torch_dispatch__ handler")
        is_alike = has_same_modes(state, self._state)
        companions = self._base.companions if is_alike else read_companions()
        write_state(state, self._base)
        return SavedState(state, companions)


#: What `_depths` measures.
_DEEP = (
    "a transform of torch.func",
    "torch.autograd.forward_ad.dual_level",
    "a backward pass",
)


def _depths() -> tuple[int | None, ...]:
    """How deep this thread is in what cannot be suspended."""
    return (_transform_level(), forward_ad._current_level, _backward_task())


def _unsuspendable(place: str) -> WaitError:
    return WaitError(
        report(
            f"An instance cannot wait for a value inside {place}.",
            where=user_line(),
            facts=[
                ("the instance", f"reads a recorded value inside {place}"),
                ("the others", "run on the same thread meanwhile, and would be inside it too"),
            ],
            todo="Read the value before, for instance with x.item(), and pass the number in.",
        )
    )
