"""The programs of one function: found again for arguments that fit, traced anew for others.

A program fits where structure, dtypes, devices, static values and guards are equal, sizes are equal
in its static dimensions, and dimensions that share a symbol are equal in every instance. A
dimension seen with a second size becomes dynamic in the next trace, unless that was tried and
failed.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from penstock.api.columns import Batch, InputColumn, SharedTensor, argument_paths
from penstock.calls.structure import Structure, unflatten
from penstock.capture.location import user_line
from penstock.capture.restarts import leading
from penstock.capture.signatures import Callee
from penstock.capture.static import static_key
from penstock.capture.trace import InputLeaf, SharedLeaf, TracedProgram, TraceRequest, trace
from penstock.capture.traced_tensor import Origins
from penstock.capture.worlds import device_name, dtype_name
from penstock.errors import PenstockError, PenstockWarning, report
from penstock.ir.program import Program
from penstock.ir.types import TensorType
from penstock.run.recording import count_trace, note_retrace

#: Programs kept per function, and traces after which a warning is due.
CAPACITY, MANY_TRACES = 64, 8

#: Before the number of a leaf, the name of a static argument among what must be equal.
_STATIC = "static argument leaf "

#: An input dimension, as (input, dimension).
Place = tuple[int, int]


@dataclass(slots=True, eq=False)
class Entry:
    """One traced program with what it was traced for."""

    traced: TracedProgram
    facts: dict[str, Hashable]
    shapes: list[tuple[int, ...]]
    #: Dynamic dimensions by symbol: those of one list must be equal in every instance.
    equal: list[list[Place]]
    executable: Any = None
    #: The steps that recorded calls of it are, by what they depend on.
    steps: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        """The program itself."""
        return self.traced.program

    @property
    def has_one_shape(self) -> bool:
        """Whether every output has the same shape for all instances, by its type."""
        kinds = [value.type for value in self.program.entry.body.outputs]
        return all(isinstance(kind, TensorType) and not kind.is_dynamic for kind in kinds)


@dataclass(slots=True)
class _Memory:
    """What earlier calls with the same structure have shown."""

    dynamic: Origins = frozenset()
    pinned: Origins = frozenset()
    #: The sizes by which dimensions were told apart so far.
    groups: dict[Place, Hashable] = field(default_factory=dict)


class Traces:
    """A bounded cache of programs. Copies and pickles of it are empty."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._memories: dict[Hashable, _Memory] = {}
        self._count = 0
        #: For each trace what it was made for, and the line that asked for it.
        self._reasons: list[str] = []
        #: Calls that found a program, and calls that had to trace.
        self.hits = 0
        self.misses = 0
        #: Arguments whose calls, in recorded eager code, are more than one step.
        self._unrecorded: set[Hashable] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> Traces:
        return Traces()

    def __reduce__(self) -> tuple[type[Traces], tuple[()]]:
        return Traces, ()

    def known(self, batch: Batch, guards: dict[str, Hashable]) -> Entry | None:
        """The program for these arguments, if there is one already."""
        facts = _facts(batch, guards)
        for entry in self._entries:
            if entry.facts == facts and _fits(entry, batch):
                self.hits += 1
                count_trace(is_hit=True)
                return entry
        return None

    def find(self, callee: Callee, batch: Batch, guards: dict[str, Hashable]) -> Entry:
        """The program for these arguments."""
        entry = self.known(batch, guards)
        if entry is not None:
            return entry
        facts = _facts(batch, guards)
        self.misses += 1
        count_trace(is_hit=False)
        return self._trace(callee, batch, facts)

    def pin(self, batch: Batch, guards: dict[str, Hashable]) -> Origins:
        """Never again try to make the dimensions dynamic in which the instances differ."""
        memory = self._memory(_facts(batch, guards))
        memory.pinned |= _differing(batch)
        memory.dynamic -= memory.pinned
        return _differing(batch)

    def pinned(self, batch: Batch, guards: dict[str, Hashable]) -> Origins:
        """Dimensions in which the instances differ, but which cannot be dynamic."""
        differing = _differing(batch)
        return differing & self._memory(_facts(batch, guards)).pinned if differing else differing

    def is_unrecorded(self, batch: Batch) -> bool:
        """Whether a call with such arguments is more than one step of recorded eager code."""
        return _record_key(batch) in self._unrecorded

    def note_unrecorded(self, batch: Batch) -> None:
        """Do not try again to record a call with such arguments as one step."""
        if len(self._unrecorded) >= CAPACITY:
            self._unrecorded.clear()
        self._unrecorded.add(_record_key(batch))

    def _trace(self, callee: Callee, batch: Batch, facts: dict[str, Hashable]) -> Entry:
        memory = self._memory(facts)
        shapes = [column.shapes[0] for column in batch.inputs]
        groups = _refined(memory.groups, _sizes(batch))
        needed = leading(_differing(batch)) - memory.pinned
        hoped = leading(memory.dynamic | self._resized(facts, shapes)) - memory.pinned - needed
        leaves, numbers = _leaves(batch), _numbered(groups)

        def attempt(dynamic: Origins) -> TracedProgram:
            pinned = memory.pinned
            return trace(TraceRequest(callee, batch.structure, leaves, dynamic, pinned, numbers))

        try:
            traced = attempt(needed | hoped)
        except (PenstockError, RuntimeError):
            if not hoped:
                raise
            memory.pinned |= hoped
            traced = attempt(needed)
        memory.dynamic, memory.pinned, memory.groups = traced.dynamic, traced.pinned, groups
        entry = Entry(traced, facts, shapes, _equal_places(traced))
        self._note(callee, entry, batch)
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
        return self._memories.setdefault(tuple(facts.items()), _Memory())

    def explain(self, name: str) -> str:
        """How often the function was traced, and why each time."""
        times = "once" if self._count == 1 else f"{self._count} times"
        lines = [f"{number:>4}  {reason}" for number, reason in enumerate(self._reasons, 1)]
        return "\n".join([f"{name} was traced {times}.", *lines])

    def _note(self, callee: Callee, entry: Entry, batch: Batch) -> None:
        """Remember why a trace was made; warn where there are many."""
        self._count += 1
        args, kwargs = unflatten(batch.structure, range(len(batch.leaves)))
        paths = argument_paths(args, kwargs, list(callee.signature.parameters))
        reason = "the first call"
        if self._entries:
            nearest = min(self._entries, key=lambda other: _distance(other, entry))
            reason = _change(nearest, entry, paths)
            note_retrace(callee.name, f"{reason}, at {user_line()}")
        if len(self._reasons) < CAPACITY:
            self._reasons.append(f"{reason}, at {user_line()}")
        if self._count == MANY_TRACES + 1:
            self._warn(callee, _change(self._entries[0], entry, paths))

    def _warn(self, callee: Callee, changed: str) -> None:
        text = report(
            f"{callee.name} was traced {self._count} times; every trace takes time.",
            where=user_line(),
            facts=[("changed", changed)],
            todo="Pass what changes as a tensor or number, or keep it the same from call to call.",
        )
        warnings.warn(text, PenstockWarning, stacklevel=2)


def _facts(batch: Batch, guards: dict[str, Hashable]) -> dict[str, Hashable]:
    """All that must be equal, by the name to use when it is not; found once for a batch."""
    if batch.facts is not None and batch.facts[0] is guards:
        known: dict[str, Hashable] = batch.facts[1]
        return known
    facts: dict[str, Hashable] = {"the structure of the arguments": _text(batch.structure)}
    for number, leaf in enumerate(batch.leaves):
        if isinstance(leaf, InputColumn):
            described = (dtype_name(leaf.dtype), len(leaf.shapes[0]), leaf.device)
            facts[f"the type of {leaf.path}"] = described
        elif isinstance(leaf, SharedTensor):
            facts[f"the shared {leaf.path}"] = _tensor_facts(leaf.tensor)
        else:
            facts[f"{_STATIC}{number}"] = static_key(leaf)
    facts |= guards
    batch.facts = guards, facts
    return facts


@lru_cache(maxsize=1024)
def _text(structure: Structure) -> str:
    return str(structure)


def _record_key(batch: Batch) -> Hashable:
    shapes = tuple(tuple(column.shapes) for column in batch.inputs)
    return tuple(_facts(batch, {}).items()), shapes


def _fits(entry: Entry, batch: Batch) -> bool:
    for number, column in enumerate(batch.inputs):
        shapes, known = column.shapes, entry.shapes[number]
        if len(shapes) == 1 and shapes[0] == known:
            continue
        for dimension, size in enumerate(known):
            if (number, dimension) in entry.traced.dynamic:
                continue
            if any(shape[dimension] != size for shape in shapes):
                return False
    together = [places for places in entry.equal if len(places) > 1]
    if together:
        sizes = _sizes(batch)
        if any(len({sizes[place] for place in places}) > 1 for places in together):
            return False
    return _captures_fit(entry)


def _captures_fit(entry: Entry) -> bool:
    """Whether what the program reads by reference still has the types it was traced with."""
    for capture, type_ in zip(entry.traced.captures, entry.program.captures, strict=True):
        if capture.shared is not None:
            continue
        assert isinstance(type_, TensorType)
        tensor = capture.fetch()
        is_alike = dtype_name(tensor.dtype) == type_.dtype and tensor.shape == type_.shape
        if not is_alike or device_name(tensor.device) != type_.device:
            return False
    return True


def _tensor_facts(tensor: torch.Tensor) -> Hashable:
    return dtype_name(tensor.dtype), tuple(tensor.shape), device_name(tensor.device)


def _leaves(batch: Batch) -> tuple[Any, ...]:
    return tuple(
        InputLeaf(leaf.dtype, leaf.shapes[0], leaf.device)
        if isinstance(leaf, InputColumn)
        else SharedLeaf(leaf.tensor, leaf.path)
        if isinstance(leaf, SharedTensor)
        else leaf
        for leaf in batch.leaves
    )


def _differing(batch: Batch) -> Origins:
    """Dimensions in which the instances differ."""
    return frozenset(
        (number, dimension)
        for number, column in enumerate(batch.inputs)
        for dimension in range(len(column.shapes[0]))
        if len({shape[dimension] for shape in column.shapes}) > 1
    )


def _sizes(batch: Batch) -> dict[Place, Hashable]:
    """For each dimension something that is equal for dimensions equal in every instance."""
    sizes: dict[Place, Hashable] = {}
    for number, column in enumerate(batch.inputs):
        rows = column.shape_of_row
        for dimension, size in enumerate(column.shapes[0]):
            if rows is None or len({shape[dimension] for shape in column.shapes}) == 1:
                sizes[number, dimension] = size
            else:
                sizes[number, dimension] = tuple(shape[dimension] for shape in rows)
    return sizes


def _refined(old: dict[Place, Hashable], new: dict[Place, Hashable]) -> dict[Place, Hashable]:
    """Dimensions stay together only where they were equal before and are now."""
    return {place: hash((old.get(place), size)) for place, size in new.items()}


def _numbered(groups: dict[Place, Hashable]) -> dict[Place, int]:
    numbers: dict[Hashable, int] = {}
    return {place: numbers.setdefault(key, len(numbers)) for place, key in groups.items()}


def _equal_places(traced: TracedProgram) -> list[list[Place]]:
    symbols: dict[str, list[Place]] = {}
    for number, value in enumerate(traced.program.entry.body.inputs):
        if isinstance(value.type, TensorType):
            for dimension, size in enumerate(value.type.shape):
                if isinstance(size, str):
                    symbols.setdefault(size, []).append((number, dimension))
    return list(symbols.values())


def _distance(before: Entry, after: Entry) -> int:
    """In how many facts two traces differ."""
    names = {*before.facts, *after.facts}
    return sum(before.facts.get(name) != after.facts.get(name) for name in names)


def _change(before: Entry, after: Entry, paths: list[str]) -> str:
    """What differs between two traces, in a few words; `paths` name the argument leaves."""
    names = [*before.facts, *(name for name in after.facts if name not in before.facts)]
    for name in names:
        old, new = before.facts.get(name), after.facts.get(name)
        if old != new:
            number = name.removeprefix(_STATIC)
            shown = paths[int(number)] if number != name else name
            return f"{shown}: {_shown(old)} -> {_shown(new)}"
    return f"shapes: {before.shapes} -> {after.shapes}"


def _shown(fact: Hashable) -> str:
    """A fact as a user would write it; plain values carry their type in front."""
    if isinstance(fact, tuple) and len(fact) == 2:
        kind, value = fact
        if isinstance(kind, type) or kind in ("bool", "int", "float", "str", "NoneType"):
            return repr(value)
    return str(fact)
