"""The values of recorded steps: computed by a flush, when somebody needs one of them.

A flush hands the steps to the planner and the runner, and forgets them. It is known which recorded
tensors are still alive, so that only their values are kept; those that outlive the scope get their
contents when one of them is asked for.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from sys import getrefcount
from typing import Any, Protocol

import numpy as np
import torch

from penstock.autodiff.recorded import start_run
from penstock.capture.lazy.failures import flush_without_failures
from penstock.capture.lazy.library import library
from penstock.capture.lazy.outside import OutsideTensors
from penstock.capture.lazy.tensor import LazyTensor
from penstock.capture.lazy.whole_graphs import Renaming, join_graphs
from penstock.plan.recorded import Recorded, StepPlanner
from penstock.plan.schedule import Integers
from penstock.run.recorded import RecordedRun
from penstock.run.seeds import Seed

#: References to a tensor that only the scope holds, as `getrefcount` counts them in a
#: comprehension.
_OWN_REFERENCES = 3


class Waits(Protocol):
    """How code waits for values."""

    def wait(self, values: Integers) -> list[torch.Tensor]:
        """The contents of values, once they are there."""

    def wait_for_turn(self) -> None:
        """Go on when all earlier instances have ended."""

    def flush(self) -> None:
        """Compute what is recorded, at once."""


class ComputedValues(OutsideTensors):
    """What recorded steps compute."""

    def __init__(self, granularity: str, policy: str, seed: Seed, recorder: Any) -> None:
        super().__init__()
        self.granularity = granularity
        self.seed = seed
        self.waits: Waits | None = None
        self._policy = policy
        self.recorder = recorder
        #: Whether steps whose results ask for gradients leave a tape.
        self.is_taped = torch.is_grad_enabled()
        self._run: RecordedRun | None = None
        #: Values below this have been computed.
        self.computed = 0
        self.failure: BaseException | None = None
        #: Whether an instance whose steps fail leaves the others alone, and those that have.
        self.returns_errors = False
        self.failed: dict[int, Exception] = {}
        self._kept: Integers = np.empty(0, np.int64)
        #: The numbers that values have since the last flush.
        self.renamed = Renaming()
        #: Tensors that were alive when the scope closed.
        self.survivors: list[weakref.ref[LazyTensor]] = []

    @property
    def run(self) -> RecordedRun:
        """What runs the steps; made when first needed."""
        if self._run is None:
            planner = StepPlanner(library.kinds, policy=self._policy, cache=library.plans)
            fetch = library.fetch_uniform
            self._run = start_run(
                library.blocks, planner, fetch, recorder=self.recorder, is_taped=self.is_taped
            )
        return self._run

    def alive(self) -> list[LazyTensor]:
        """Recorded tensors that somebody else holds."""
        return [lazy for lazy in self.lazies if getrefcount(lazy) > _OWN_REFERENCES]

    def contents(self, lazies: Sequence[LazyTensor]) -> list[torch.Tensor]:
        """The contents of recorded tensors, without gradients; waits if they are not there yet."""
        values = np.array([lazy._value for lazy in lazies], np.int64)
        if (values < self.computed).all():
            return self.run.read(values)
        if self.waits is not None:
            return self.waits.wait(values)
        self.flush()
        return self.run.read(self.renamed(values))

    def realise(self, lazies: Sequence[LazyTensor]) -> list[torch.Tensor]:
        """Recorded tensors as ordinary ones, connected to what they were computed from."""
        values = np.array([lazy._value for lazy in lazies], np.int64)
        if not (values < self.computed).all():
            self.contents(lazies)
            values = np.array([lazy._value for lazy in lazies], np.int64)
        if torch.is_inference_mode_enabled():
            return self.run.outputs(values, [False] * len(lazies))
        with torch.enable_grad():
            return self.run.outputs(values, [lazy._kind.requires_grad for lazy in lazies])

    def realise_survivors(self, lazy: LazyTensor) -> None:
        """Give every tensor that outlived the scope its contents."""
        found = (reference() for reference in self.survivors)
        alive = [item for item in found if item is not None and item._real is None]
        for item, tensor in zip(alive, self.realise(alive), strict=True):
            item._real = tensor
        self.survivors = []
        self.run.finish()

    def compute_now(self) -> None:
        """Compute everything recorded so far, before any other instance goes on."""
        if self.waits is not None:
            self.waits.flush()
        else:
            self.flush()

    def wait_for_turn(self) -> None:
        """Go on when all earlier instances have ended."""
        if self.waits is not None:
            self.waits.wait_for_turn()

    def flush(self) -> None:
        """Compute everything that is recorded."""
        inputs, tensors = self.grouped_inputs()
        alive = self.alive()
        kept = np.unique(np.fromiter((lazy._value for lazy in alive), np.int64, len(alive)))
        if self.drawing:
            self.run.planner.seed = self.seed.number
            self.seed.take()
        recorded = Recorded(
            np.array(self.kinds, np.int64),
            np.array(self.operands, np.int64),
            np.array(self.results, np.int64),
            self.instances(),
            self.draw_numbers(),
            inputs,
            kept[kept >= self.computed],
            np.setdiff1d(self._kept, kept, assume_unique=True),
        )
        if self.granularity == "graph":
            recorded = self._join_graphs(recorded, alive)
            kept = np.sort(self.renamed(kept))
        self.lazies, self._kept, self.computed = alive, kept, self.next_value
        self.forget_records()
        if self.returns_errors:
            self._fail(flush_without_failures(self.run, recorded, tensors, self.roots))
        else:
            self.run.flush(recorded, tensors)
        self.held, self.held_units = {}, {}

    def _fail(self, failed: dict[int, Exception]) -> None:
        """Some instances have failed: their tensors have no contents."""
        self.failed.update(failed)
        if failed:
            where = self.run.planner.values.slot
            self.lazies = [lazy for lazy in self.lazies if where[lazy._value] >= 0]
            self._kept = self._kept[where[self._kept] >= 0]

    def _join_graphs(self, recorded: Recorded, alive: Sequence[LazyTensor]) -> Recorded:
        """What an instance has recorded as one step, where others have recorded the same."""
        joined, self.renamed = join_graphs(recorded, self.next_value)
        self.next_value += len(self.renamed.old)
        values = np.fromiter((lazy._value for lazy in alive), np.int64, len(alive))
        for lazy, value in zip(alive, self.renamed(values).tolist(), strict=True):
            lazy._value = value
        return joined
