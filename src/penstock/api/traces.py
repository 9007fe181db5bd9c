"""The programs of one function: found again for arguments that fit, traced anew for others.

Which arguments a program serves is said in `entries.py`. A dimension seen with a second size
becomes dynamic in the next trace, unless that was tried and failed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from penstock.api.batch_sizes import Place, differing_dimensions, numbered, refined, sizes_of
from penstock.api.batches import Batch
from penstock.api.columns import InputColumn, SharedTensor
from penstock.api.entries import Entry, FactsSeen, equal_places, facts_of, fits
from penstock.api.guards import Guards
from penstock.api.retraces import Retraces
from penstock.capture.restarts import leading
from penstock.capture.signatures import Callee
from penstock.capture.trace import InputLeaf, SharedLeaf, TracedProgram, TraceRequest, trace
from penstock.capture.traced_tensor import Origins
from penstock.run.recording import count_trace

#: Programs kept per function.
CAPACITY = 64

#: Where an object keeps the programs of its decorated methods.
_TRACES = "_penstock_traces"


@dataclass(slots=True)
class _Memory:
    """What earlier calls with the same structure have shown."""

    dynamic: Origins = frozenset()
    pinned: Origins = frozenset()
    #: The sizes by which dimensions were told apart so far.
    groups: dict[Place, Hashable] = field(default_factory=dict)


class Traces:
    """A bounded cache of programs. Copies and pickles of it are empty."""

    def __init__(self, owner: Callable[..., Any] | None = None) -> None:
        #: The function that they are for, where that is a method; held, as it is known by its id.
        self.owner = owner
        self._entries: list[Entry] = []
        self._memories: dict[Hashable, _Memory] = {}
        #: The memory that was asked for last, and the facts that it belongs to.
        self._remembered: tuple[dict[str, Hashable], _Memory] | None = None
        self._retraces = Retraces()
        #: Calls that found a program, and calls that had to trace.
        self.hits = 0
        self.misses = 0
        self._facts = FactsSeen()
        self._guards: Guards | None = None
        #: Arguments whose calls, in recorded eager code, are more than one step.
        self._unrecorded: set[Hashable] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> Traces:
        return Traces()

    def __reduce__(self) -> tuple[type[Traces], tuple[()]]:
        return Traces, ()

    def guards(self, function: Any) -> dict[str, Hashable]:
        """The plain values that traces of the function depend on, as they are now."""
        if self._guards is None or self._guards.function != function:
            self._guards = Guards(function)
        return self._guards.values()

    def known(self, batch: Batch, guards: dict[str, Hashable]) -> Entry | None:
        """The program for these arguments, if there is one already."""
        facts = self._facts.of(batch, guards)
        for entry in self._entries:
            if (entry.facts is facts or entry.facts == facts) and fits(entry, batch):
                self.hits += 1
                count_trace(is_hit=True)
                return entry
        return None

    def find(self, callee: Callee, batch: Batch, guards: dict[str, Hashable]) -> Entry:
        """The program for these arguments."""
        entry = self.known(batch, guards)
        if entry is not None:
            return entry
        facts = self._facts.of(batch, guards)
        self.misses += 1
        count_trace(is_hit=False)
        return self._trace(callee, batch, facts)

    def pin(self, batch: Batch, guards: dict[str, Hashable]) -> Origins:
        """Never again try to make the dimensions dynamic in which the instances differ."""
        memory = self._memory(self._facts.of(batch, guards))
        memory.pinned |= differing_dimensions(batch)
        memory.dynamic -= memory.pinned
        return differing_dimensions(batch)

    def unpin(self, batch: Batch, guards: dict[str, Hashable]) -> None:
        """Try again, the next time: the instances fail by themselves as well."""
        self._memory(self._facts.of(batch, guards)).pinned -= differing_dimensions(batch)

    def pinned(self, batch: Batch, guards: dict[str, Hashable]) -> Origins:
        """Dimensions in which the instances differ, but which cannot be dynamic."""
        differing = differing_dimensions(batch)
        if not differing:
            return differing
        return differing & self._memory(self._facts.of(batch, guards)).pinned

    def is_unrecorded(self, batch: Batch) -> bool:
        """Whether a call with such arguments is more than one step of recorded eager code."""
        return _record_key(batch) in self._unrecorded

    def note_unrecorded(self, batch: Batch) -> None:
        """Do not try again to record a call with such arguments as one step."""
        if len(self._unrecorded) >= CAPACITY:
            self._unrecorded.clear()
        self._unrecorded.add(_record_key(batch))

    def explain(self, name: str) -> str:
        """How often the function was traced, and why each time."""
        return self._retraces.explain(name)

    def _trace(self, callee: Callee, batch: Batch, facts: dict[str, Hashable]) -> Entry:
        memory = self._memory(facts)
        shapes = [column.shapes[0] for column in batch.inputs]
        groups = refined(memory.groups, sizes_of(batch))
        needed = leading(differing_dimensions(batch)) - memory.pinned
        hoped = leading(memory.dynamic | self._resized(facts, shapes)) - memory.pinned - needed
        leaves, numbers = _leaves(batch), numbered(groups)

        def attempt(dynamic: Origins, pinned: Origins) -> TracedProgram:
            return trace(TraceRequest(callee, batch.structure, leaves, dynamic, pinned, numbers))

        fails = False
        try:
            traced = attempt(needed | hoped, memory.pinned)
        except Exception:  # of whatever kind: it may be about sizes that stand for all
            if not hoped:
                raise
            fails = True
        if fails:  # not in the clause above: the error would show sizes that nobody has given
            traced = attempt(needed, memory.pinned | hoped)
        memory.dynamic, memory.pinned, memory.groups = traced.dynamic, traced.pinned, groups
        entry = Entry(traced, facts, shapes, equal_places(traced))
        self._retraces.note(callee, entry, batch, self._entries)
        self._entries = [entry, *self._entries][:CAPACITY]
        return entry

    def _resized(self, facts: dict[str, Hashable], shapes: list[tuple[int, ...]]) -> Origins:
        """Dimensions that had another size in an earlier trace."""
        return frozenset(
            (number, dimension)
            for entry in self._entries
            if entry.facts == facts
            for number, before in enumerate(entry.shapes)
            for dimension in range(len(before))
            if before[dimension] != shapes[number][dimension]
        )

    def _memory(self, facts: dict[str, Hashable]) -> _Memory:
        if self._remembered is None or self._remembered[0] is not facts:
            self._remembered = facts, self._memories.setdefault(tuple(facts.items()), _Memory())
        return self._remembered[1]


def _leaves(batch: Batch) -> tuple[Any, ...]:
    return tuple(
        InputLeaf(leaf.dtype, leaf.shapes[0], leaf.device)
        if isinstance(leaf, InputColumn)
        else SharedLeaf(leaf.tensor, leaf.path)
        if isinstance(leaf, SharedTensor)
        else leaf
        for leaf in batch.leaves
    )


def traces_of(instance: Any, method: Callable[..., Any]) -> Traces:
    """The programs of one decorated method of one object; they live and end with the object. A
    method that a subclass has overridden has programs of its own.
    """
    stored: dict[int, Traces] = instance.__dict__.setdefault(_TRACES, {})
    found = stored.get(id(method))
    if found is None or found.owner is not method:  # those of a copy have no owner
        found = stored[id(method)] = Traces(method)
    return found


def _record_key(batch: Batch) -> Hashable:
    shapes = tuple(tuple(column.shapes) for column in batch.inputs)
    return tuple(facts_of(batch, {}).items()), shapes
