"""Traced programs, and which arguments each of them serves.

A program fits where structure, dtypes, devices, static values and guards are equal, sizes are equal
in its static dimensions, and dimensions that share a symbol are equal in every instance. What it
reads by reference must still have the types it was traced with.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from penstock.api.batch_sizes import Place, sizes_of
from penstock.api.batches import Batch
from penstock.api.columns import InputColumn, SharedTensor
from penstock.calls.structure import Structure
from penstock.capture.static import static_key
from penstock.capture.trace import TracedProgram
from penstock.capture.worlds import device_name, dtype_name
from penstock.ir.program import Program
from penstock.ir.types import TensorType

#: Before the number of a leaf, the name of a static argument among what must be equal.
STATIC = "static argument leaf "


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


def equal_places(traced: TracedProgram) -> list[list[Place]]:
    """Dynamic dimensions of the inputs by symbol, as in `Entry.equal`."""
    symbols: dict[str, list[Place]] = {}
    for number, value in enumerate(traced.program.entry.body.inputs):
        if isinstance(value.type, TensorType):
            for dimension, size in enumerate(value.type.shape):
                if isinstance(size, str):
                    symbols.setdefault(size, []).append((number, dimension))
    return list(symbols.values())
