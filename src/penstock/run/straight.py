"""The launches of a kept window in a row: what each takes is picked out of one pool of tensors.

A launch that has run compiled is a call, and where its tensors are in the pool; in a run only the
chunks of arenas and the uniform values are put there. All other instructions, and a launch whose
code fails, go the usual way. What a call gives is for its note, which leaves what the usual way
would have left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from penstock.run.fused.inductor import Compiled
from penstock.run.fused.launch_code import contiguous

if TYPE_CHECKING:
    from penstock.run.fused.binding import FusedLaunch
    from penstock.run.prepared import Prepared
    from penstock.run.runner import Runner

log = logging.getLogger("penstock")

#: Takes what a launch gives.
Note: TypeAlias = "Callable[[Runner, Sequence[torch.Tensor]], None]"


class Pool:
    """Tensors that calls take, each once: some are always the same, some a run must say."""

    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self._known: dict[object, int] = {}

    def constant(self, tensor: torch.Tensor) -> int:
        """The place of a tensor that is always the same."""
        return self.place(("constant", id(tensor)), tensor)

    def place(self, key: object, tensor: torch.Tensor | None = None) -> int:
        """The place of what is known by a key."""
        place = self._known.get(key)
        if place is None:
            place = self._known[key] = len(self.tensors)
            self.tensors.append(tensor)
        return place


class Call(NamedTuple):
    """One instruction of a window."""

    step: Prepared
    #: None where it goes the usual way.
    code: Compiled | None = None
    take: Callable[[list[Any]], tuple[torch.Tensor, ...]] | None = None
    note: Note | None = None


class StraightWindow:
    """A window for runs of one purpose."""

    def __init__(self, run: Runner, steps: Sequence[Prepared]) -> None:
        self._pool = Pool()
        #: At which place of the pool which chunk of which arena is, and which uniform value.
        self.chunks: dict[int, tuple[int, int]] = {}
        self.wires: dict[int, int] = {}
        self.calls = [self._call(run, step) for step in steps]
        self.tensors = self._pool.tensors

    @property
    def is_worth_it(self) -> bool:
        """Whether there are compiled launches in it."""
        return any(call.code is not None for call in self.calls)

    def _call(self, run: Runner, step: Prepared) -> Call:
        found = run.straight_launch(step)
        if found is None or not self._fits(run, found[0]):
            return Call(step)
        launch, note = found
        places = [
            -1 if tensor is None else self._pool.constant(tensor) for tensor in launch.tensors
        ]
        for place, number, chunk in launch.chunks:
            places[place] = self._pool.place(("chunk", number, chunk))
            self.chunks[places[place]] = number, chunk
        for place, wire in launch.wires:
            places[place] = self._pool.place(("wire", wire))
            self.wires[places[place]] = wire
        return Call(step, launch.form.compiled, itemgetter(*places), note)

    def _fits(self, run: Runner, launch: FusedLaunch) -> bool:
        """Whether it has run compiled, from chunks that stay for the whole window."""
        is_ready = launch.is_found and launch.form.compiled is not None and not launch.mirrors
        return (
            is_ready
            and len(launch.tensors) > 1
            and launch.form.code.device.type == "cpu"
            and not any(run.arenas[number].is_held for _, number, _ in launch.chunks)
        )

    def run(self, run: Runner) -> bool:
        """Carry it out; False where the usual way must be taken, before anything was done."""
        pool = self.tensors.copy()
        for place, (number, chunk) in self.chunks.items():
            pool[place] = run.arenas[number].chunks[chunk]
        for place, wire in self.wires.items():
            pool[place] = run.uniform(wire)
        if not contiguous([pool[place] for place in (*self.chunks, *self.wires)]):
            return False
        for step, code, take, note in self.calls:
            if code is None or take is None:
                run._run_steps((step,))
                continue
            try:
                given = code(list(take(pool)))
            except Exception as error:  # the usual way tells whose fault it is
                log.debug("compiled code failed: %s", error)
                run._run_steps((step,))
                continue
            if note is not None:
                note(run, given)
        return True


@dataclass(slots=True, eq=False)
class Straightened:
    """A window of a kept plan for runs of one purpose, as far as it was made."""

    runs: int = 0
    window: StraightWindow | None = None

    def find(self, run: Runner, steps: Sequence[Prepared]) -> StraightWindow | None:
        """Made when the window runs for the third time, and anew when the runs have doubled, as
        blocks are compiled when they have been launched often.
        """
        self.runs += 1
        if self.runs > 1 and not self.runs & (self.runs - 1):
            with torch.inference_mode(False):
                made = StraightWindow(run, steps)
            self.window = made if made.is_worth_it else None
        return self.window
