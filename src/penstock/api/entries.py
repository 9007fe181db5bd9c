"""Traced programs, and which arguments each of them serves.

A program fits where structure, dtypes, devices, static values and guards are equal, sizes are equal
in its static dimensions, and dimensions that share a symbol are equal in every instance. What it
reads by reference must still have the types it was traced with.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import torch

from penstock.api.batch_sizes import Place, sizes_of
from penstock.api.batches import Batch
from penstock.api.columns import InputColumn, SharedTensor
from penstock.calls.structure import Structure
from penstock.capture.captures import Capture
from penstock.capture.static import static_key
from penstock.capture.trace import TracedProgram
from penstock.capture.worlds import device_name, dtype_name
from penstock.ir.program import Program
from penstock.ir.types import TensorType

#: Before the number of a leaf, the name of a static argument among what must be equal.
STATIC = "static argument leaf "

#: Of a captured tensor its dtype, shape and device; None where it comes with the arguments.
Captured: TypeAlias = "tuple[torch.dtype, torch.Size, torch.device] | None"


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
    #: What was captured when it last had the right types: dtypes, shapes and devices.
    captured: list[Captured] = field(default_factory=list)
    #: Whether every output has the same shape for all instances, by its type.
    has_one_shape: bool = field(init=False)

    @property
    def program(self) -> Program:
        """The program itself."""
        return self.traced.program

    def __post_init__(self) -> None:
        kinds = [value.type for value in self.program.entry.body.outputs]
        self.has_one_shape = all(
            isinstance(kind, TensorType) and not kind.is_dynamic for kind in kinds
        )


def facts_of(batch: Batch, guards: dict[str, Hashable]) -> dict[str, Hashable]:
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
            facts[f"{STATIC}{number}"] = static_key(leaf)
    facts |= guards
    batch.facts = guards, facts
    return facts


class FactsSeen:
    """The facts of the batch that was seen last: one that is like it has the same."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[Any, ...] = (None, None, None, {})

    def of(self, batch: Batch, guards: dict[str, Hashable]) -> dict[str, Hashable]:
        """`facts_of` this batch."""
        structure, likeness = batch.structure, list(map(_likeness, batch.leaves))
        before, known_structure, known_likeness, facts = self._last
        if guards is before and structure is known_structure and likeness == known_likeness:
            batch.facts = guards, facts
        else:
            facts = facts_of(batch, guards)
            self._last = guards, structure, likeness, facts
        return facts  # type: ignore[no-any-return]


def _likeness(leaf: Any) -> Hashable:
    """Equal for arguments with the same facts, in one place of one structure."""
    if isinstance(leaf, InputColumn):
        return leaf.path, leaf.dtype, len(leaf.shapes[0]), leaf.device
    if isinstance(leaf, SharedTensor):
        return leaf.path, leaf.tensor.dtype, leaf.tensor.shape, leaf.tensor.device
    return static_key(leaf)


@lru_cache(maxsize=1024)
def _text(structure: Structure) -> str:
    return str(structure)


def fits(entry: Entry, batch: Batch) -> bool:
    """Whether a program with the same facts serves the sizes of these arguments."""
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
        sizes = sizes_of(batch)
        if any(len({sizes[place] for place in places}) > 1 for places in together):
            return False
    return _captures_fit(entry)


def _captures_fit(entry: Entry) -> bool:
    """Whether what the program reads by reference still has the types it was traced with."""
    captured = list(map(_described, entry.traced.captures))
    if captured == entry.captured:
        return True
    for found, type_ in zip(captured, entry.program.captures, strict=True):
        if found is None:
            continue
        assert isinstance(type_, TensorType)
        dtype, shape, device = found
        is_alike = dtype_name(dtype) == type_.dtype and shape == type_.shape
        if not is_alike or device_name(device) != type_.device:
            return False
    entry.captured = captured
    return True


def _described(capture: Capture) -> Captured:
    if capture.shared is not None:
        return None
    tensor = capture.fetch()
    return tensor.dtype, tensor.shape, tensor.device


def _tensor_facts(tensor: torch.Tensor) -> Hashable:
    return dtype_name(tensor.dtype), tuple(tensor.shape), device_name(tensor.device)


def equal_places(traced: TracedProgram) -> list[list[Place]]:
    """Dynamic dimensions of the inputs by symbol, as in `Entry.equal`."""
    symbols: dict[str, list[Place]] = {}
    for number, value in enumerate(traced.program.entry.body.inputs):
        if isinstance(value.type, TensorType):
            for dimension, size in enumerate(value.type.shape):
                if isinstance(size, str):
                    symbols.setdefault(size, []).append((number, dimension))
    return list(symbols.values())
