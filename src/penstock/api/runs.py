"""Runs batches of arguments of one function: which of its programs serve them, and in which parts.

Instances run together unless their shapes forbid it; results are in the order of the instances,
however they were divided. Programs are compiled when they first run. Binding of arguments, and what
is returned to users, is not decided here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from penstock.api.batches import Batch
from penstock.api.entries import Entry
from penstock.api.instances import naming_assertions, naming_instance, split_instances
from penstock.api.program_steps import record_program
from penstock.api.traces import Traces
from penstock.autodiff.function import asks_for_gradients, run_with_gradients
from penstock.capture.lazy.scope import Scope
from penstock.capture.signatures import Callee
from penstock.distributed.call import is_spread, run_placed
from penstock.errors import ArgumentError, report
from penstock.run.memory.policy import default_policy
from penstock.run.recording import note_split
from penstock.run.seeds import Seed
from penstock.run.shipped import ShippedPlan

#: For each instance its program and its output tensors.
Rows = list[tuple[Entry, list[torch.Tensor]]]


class Runs:
    """The runs of one function."""

    __slots__ = ("_callee", "_options", "_traces")

    def __init__(self, callee: Callee, traces: Traces, options: dict[str, Any]) -> None:
        self._callee = callee
        #: The programs so far; of a method, those of its object.
        self._traces = traces
        #: Those that `ps.function` was given.
        self._options = options

    def entry_for(self, batch: Batch) -> Entry:
        """The program for these arguments, found or traced."""
        return self._traces.find(self._callee, batch, self._guards())

    def executable(self, entry: Entry) -> Any:
        """The program, compiled."""
        if entry.executable is None:
            from penstock.run.executable import compile_program

            entry.executable = compile_program(entry.program, self._options["max_depth"])
        return entry.executable

    def one(self, batch: Batch) -> Any:
        """What the function returns for one instance."""
        entry = self.entry_for(batch)
        return entry.traced.rebuild(self._run(entry, batch, Seed())[0][1])

    def recorded(self, scope: Scope, batch: Batch) -> tuple[bool, Any]:
        """Record a call as one step of eager code, if it can be one; else (False, None)."""
        if self._traces.is_unrecorded(batch):
            return False, None
        find = partial(self.entry_for, batch)
        try:
            is_step, returned = record_program(scope, batch, find, self.executable)
        except Exception:  # the function itself will raise it again
            is_step, returned = False, None
        if not is_step:
            self._traces.note_unrecorded(batch)
        return is_step, returned

    def schedule(self, batch: Batch) -> Any:
        """What a run would launch, in order."""
        entry = self._entry_for_all(batch)
        values = [column.values for column in batch.inputs]
        captures = _captures(entry, batch)
        return self.form_of(entry).schedule(values, captures, batch.count, batch.numbers)

    def _entry_for_all(self, batch: Batch) -> Entry:
        """The program for all instances together; an error is one of the first that fails, with the
        sizes that it has.
        """
        guards = self._guards()
        if not self._traces.pinned(batch, guards):
            try:
                return self._find(batch, guards)
            except Exception:
                if not self._traces.pin(batch, guards):
                    raise
        groups = split_instances(batch, lambda number, shape: shape)
        with self._unpinned_on_error(batch, guards):
            for _, group in groups:
                self._find(group, guards)
        raise _not_one_schedule(self._callee.name, len(groups))

    def rows_or_errors(self, batch: Batch, seed: Seed) -> list[Any]:
        """The outputs of all instances; those that fail are found by halving."""
        try:
            results = self.rows(batch, seed)
        except Exception as error:
            if batch.count == 1:
                return [error]
            half = batch.count // 2
            parts = (range(half), range(half, batch.count))
            found = [self.rows_or_errors(batch.rows(part), seed) for part in parts]
            return [*found[0], *found[1]]
        return [entry.traced.rebuild(tensors) for entry, tensors in results]

    def rows(self, batch: Batch, seed: Seed | None = None) -> Rows:
        """For each instance its program and its output tensors."""
        guards = self._guards()
        seed = seed or Seed()
        results: list[Any] = [None] * batch.count
        parts = split_instances(batch, _fixed_sizes)
        reason = "their shapes differ in more than the first dimension"
        note_split(self._callee.name, batch.count, len(parts), reason)
        for rows, part in parts:
            for row, result in zip(rows, self._run_part(part, guards, seed), strict=True):
                results[row] = result
        return results

    def _run_part(self, part: Batch, guards: dict[str, Any], seed: Seed) -> Rows:
        """Run instances that differ in leading sizes only: together, else those of each size."""
        if self._traces.pinned(part, guards):
            return self._run_by_size(part, guards, seed)
        try:
            entry = self._find(part, guards)
        except Exception:  # of whatever kind: it may be about sizes that stand for all
            if not self._traces.pin(part, guards):
                raise
        else:
            return self._run(entry, part, seed)
        with self._unpinned_on_error(part, guards):
            return self._run_by_size(part, guards, seed)

    @contextmanager
    def _unpinned_on_error(self, part: Batch, guards: dict[str, Any]) -> Iterator[None]:
        """Instances that fail by themselves as well do not tell that sizes must be known."""
        try:
            yield
        except Exception:
            self._traces.unpin(part, guards)
            raise

    def _run_by_size(self, part: Batch, guards: dict[str, Any], seed: Seed) -> Rows:
        results: list[Any] = [None] * part.count
        groups = split_instances(part, lambda number, shape: shape)
        reason = "their sizes differ, and the function cannot be traced for all sizes at once"
        note_split(self._callee.name, part.count, len(groups), reason)
        for rows, group in groups:
            entry = self._find(group, guards)
            for row, result in zip(rows, self._run(entry, group, seed), strict=True):
                results[row] = result
        return results

    def _guards(self) -> dict[str, Any]:
        return self._traces.guards(self._callee.function)

    def _find(self, batch: Batch, guards: dict[str, Any]) -> Entry:
        with naming_instance(batch.numbers[0] if batch.numbers else None, self._callee.name):
            return self._traces.find(self._callee, batch, guards)

    def _run(self, entry: Entry, batch: Batch, seed: Seed) -> Rows:
        rows = self._run_columns(entry, batch, seed)
        return [(entry, [row[number] for row in rows]) for number in range(batch.count)]

    def joined(self, batch: Batch) -> Any:
        """The stacked outputs, where one known program with outputs of one shape runs them all."""
        if len(list(split_instances(batch, _fixed_sizes))) != 1:
            return None
        guards = self._guards()
        if self._traces.pinned(batch, guards):
            return None
        entry = self._traces.known(batch, guards)
        if entry is None or not entry.has_one_shape:
            return None
        return entry.traced.rebuild(self._run_columns(entry, batch, Seed(), is_joined=True))

    def _run_columns(
        self, entry: Entry, batch: Batch, seed: Seed, *, is_joined: bool = False
    ) -> list[Any]:
        """Each output of the program: a list of rows, or one tensor of all rows."""
        values = [column.values for column in batch.inputs]
        captures = _captures(entry, batch)
        executable = self.form_of(entry, batch.count)
        call = (executable, values, captures, batch.count, batch.numbers, seed)
        with naming_assertions(entry.traced.assertions):
            if is_spread(executable):
                return run_placed(*call, is_joined=is_joined)
            executable.refuse_absent_devices()
            if asks_for_gradients(values, captures):
                with default_policy(self._options["memory"]):
                    return run_with_gradients(*call, is_joined=is_joined)
            columns = executable.run(values, captures, batch.count, batch.numbers, seed)
            return [column.stacked() if is_joined else column.rows() for column in columns]

    def form_of(self, entry: Entry, count: int = 1) -> Any:
        """The program, compiled, as it pays to run it now for so many instances."""
        executable = self.executable(entry)
        with default_policy(self._options["memory"]):
            return executable.windows.chosen(count) or executable

    def plan_ahead(self, batch: Batch) -> tuple[list[ShippedPlan], str]:
        """The plans of a map, and why there are none for some instances."""
        plans, note = [], ""
        try:
            guards = self._guards()
            for _, part in split_instances(batch, _fixed_sizes):
                entry = self._find(part, guards)
                values = [column.values for column in part.inputs]
                captures = _captures(entry, part)
                executable = self.executable(entry)
                made = executable.plan_ahead(values, captures, part.count, part.numbers)
                if made is None:
                    note = "planned when it is run: not decided by inputs alone, or very long"
                else:
                    plans.append(made)
        except Exception as error:  # the map will raise it again, where the user can see it
            note = f"planned when it is run: {type(error).__name__} while planning"
        return plans, note


def _captures(entry: Entry, batch: Batch) -> list[torch.Tensor]:
    return [
        capture.fetch() if capture.shared is None else batch.shared[capture.shared].tensor
        for capture in entry.traced.captures
    ]


def _fixed_sizes(number: int, shape: tuple[int, ...]) -> Hashable:
    """What instances of one program must agree on: all but the leading size."""
    return len(shape), shape[1:]


def _not_one_schedule(name: str, sizes: int) -> ArgumentError:
    return ArgumentError(
        report(
            f"{name}.schedule: the function cannot be traced for all sizes at once.",
            facts=[("sizes of instances", f"{sizes} different"), ("schedules", "one for each")],
            todo="Give instances of one size; map runs those of each size by themselves.",
        )
    )
