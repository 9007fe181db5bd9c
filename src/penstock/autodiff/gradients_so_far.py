"""The gradients that a backward pass has found so far: of slots, and of uniform values.

A slot has a gradient or has none, which is not the same as zero; rows without one do not go
backward. Factors of weight gradients wait in windows until many rows can be contracted at once, so
the gradient of a uniform value is whole only when its windows are flushed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from penstock.autodiff.contract import Contraction, Window
from penstock.autodiff.gradients import GradientArena, add_gradients, as_slots
from penstock.plan.schedule import Integers, Kind, Picks, Span


class GradientsSoFar:
    """Gradients of the values of one run."""

    def __init__(self, extents: Sequence[tuple[Kind, int]], unasked: Iterable[Span] = ()) -> None:
        #: For each arena what it holds, and for how many slots.
        self.extents = extents
        #: Slots of inputs whose gradients nobody asks for.
        self.unasked = tuple(unasked)
        #: For some arenas how many of their first slots have no part in this.
        self.leading: Mapping[int, int] = {}
        self.arenas: dict[int, GradientArena] = {}
        self.uniform_gradients: dict[int, torch.Tensor] = {}
        #: By block and operand, the wire and what waits for it.
        self.windows: dict[object, tuple[int, Window]] = {}

    def arena(self, number: int) -> GradientArena:
        """The gradients of an arena's values."""
        arena = self.arenas.get(number)
        if arena is None:
            arena = self.arenas[number] = self._new_arena(number)
            for span in self.unasked:
                if span.arena == number:
                    arena.leave_out(span)
        return arena

    def _new_arena(self, number: int) -> GradientArena:
        return GradientArena(*self.extents[number], self.leading.get(number, 0))

    def gradient_of(self, number: int, slots: Integers) -> torch.Tensor | None:
        """The gradients of slots, zeros for those without; None if none has one."""
        arena = self.arenas.get(number)
        if arena is None or not arena.present[slots].any():
            return None
        return arena.gather(slots)

    def _forget(self, targets: Sequence[Span | Picks]) -> None:
        for target in targets:
            if target.arena in self.arenas:
                self.arenas[target.arena].clear(as_slots(target))

    def _rows_held(
        self, target: Span | Picks, rows: int
    ) -> tuple[npt.NDArray[np.bool_] | None, bool]:
        """Which rows of a result have a cotangent, None if none has; and whether all its slots have
        one: a row that is held may lack those of some of its elements.
        """
        arena = self.arenas.get(target.arena)
        if arena is None:
            return None, False
        held: npt.NDArray[np.bool_] = arena.present[as_slots(target)]
        count = np.count_nonzero(held)
        is_whole = bool(count == len(held))
        if len(held) != rows and rows:
            held = held.reshape(rows, -1).any(axis=1, keepdims=True).reshape(-1)
        return (held if count else None), is_whole

    def collect(
        self,
        key: object,
        wire: int,
        how: Contraction,
        factors: Sequence[torch.Tensor],
        *,
        is_own: bool,
    ) -> None:
        """Factors of a weight gradient go to the window of their block and operand; `is_own`:
        nobody writes to their memory.
        """
        found = self.windows.get(key)
        if found is None:
            found = self.windows[key] = wire, Window(how)
        found[1].add(factors, None if is_own else self._owned)

    def _owned(self, values: torch.Tensor) -> torch.Tensor:
        """Values in memory that nobody writes to: slots are used again before a window is full."""
        place = values.untyped_storage().data_ptr()
        arenas = (arena.values.untyped_storage().data_ptr() for arena in self.arenas.values())
        return values.clone() if place in arenas else values

    def add_uniform(self, wire: int, gradient: torch.Tensor) -> None:
        """Add to the gradient of a uniform value."""
        known = self.uniform_gradients.get(wire)
        self.uniform_gradients[wire] = add_gradients(known, gradient)

    def flush(self) -> None:
        """Contract what waits."""
        for wire, window in self.windows.values():
            gradient = window.flush()
            if gradient is not None:
                self.add_uniform(wire, gradient)
