"""The code of a whole launch: gather operands out of arenas, run a block, write results to arenas.

A launch is described by its parts, in the order in which the block's function takes them, and by
what becomes of each result. The compiled code takes for every gathered part an arena's chunk and an
index, for every written result a chunk and an index, and gives the results that are not written. It
assumes that no slot is both read and written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from math import prod

import torch

from penstock.run.batched.emit import BatchFunction
from penstock.run.fused.inductor import CannotCompile, Compiled, compile_function

#: Sizes of the examples that stand for all sizes: no two free ones alike but the rows.
ROWS, FIRST_CHUNK = 67, 101
#: The same where rows are so large that examples would have more elements than this.
FEW_ROWS, SMALL_CHUNK, MOST_ELEMENTS = 5, 11, 1 << 26
#: Fewer rows for which compiled code is checked too.
CHECKED = (1, 3)
#: How far compiled code may differ from plain code, by the size of the type.
TOLERANCES = {2: 2e-2, 4: 2e-4, 8: 1e-9}


class Origin(Enum):
    """Where a part of a launch comes from."""

    #: Rows of an arena, by index.
    GATHERED = "gathered"
    #: A tensor with one entry for each row.
    GIVEN = "given"
    #: A tensor that is the same for all rows.
    UNIFORM = "uniform"


@dataclass(frozen=True, slots=True)
class Part:
    """One operand: where it comes from, and for one row (or as a whole) what it is."""

    origin: Origin
    dtype: torch.dtype
    shape: tuple[int, ...]
    device: torch.device
    #: Whether the function takes the entries of all rows behind each other, in one dimension.
    is_joined: bool = False
    #: Whether zeros are left where it was gathered.
    is_taken: bool = False
    #: Whether its rows lie in the arena without their first dimension, which is 1: they are
    #: elements of sequences.
    is_flat: bool = False

    @property
    def stored(self) -> tuple[int, ...]:
        """What a row is in its arena."""
        return self.shape[1:] if self.is_flat else self.shape


@dataclass(frozen=True, slots=True)
class Written:
    """A result that is written to slots of an arena that holds such values."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    device: torch.device
    #: Whether it is added to what is there; slots may occur twice.
    is_added: bool = False
    #: Whether it is added where something is, and written elsewhere: one more tensor tells for each
    #: row whether something is there. No slot occurs twice.
    is_merged: bool = False

    def put(self, values: torch.Tensor, tensors: Iterator[torch.Tensor]) -> None:
        """Write it, or add it."""
        chunk, index = next(tensors), next(tensors)
        values = values.reshape(index.shape[0], *self.shape)
        if self.is_added:
            chunk.index_add_(0, index, values)
            return
        if self.is_merged:
            is_there = next(tensors).view(-1, *[1] * len(self.shape))
            values = values + chunk.index_select(0, index).where(is_there, 0)
        chunk.index_copy_(0, index, values)


@dataclass(frozen=True, slots=True)
class LaunchCode:
    """A launch of a block, as far as it is the same for all rows and sizes."""

    function: BatchFunction
    parts: tuple[Part, ...]
    #: For each result where it is written; None: it is given back.
    results: tuple[Written | None, ...]

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.parts[0].device

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be done again where it has failed half-way: nothing that it reads is
        changed.
        """
        results = [written for written in self.results if written is not None]
        is_changed = any(written.is_added or written.is_merged for written in results)
        return not is_changed and not any(part.is_taken for part in self.parts)

    def run(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The plain way."""
        remaining = iter(tensors)
        rows: int = -1
        arguments, taken = [], []
        for part in self.parts:
            tensor = next(remaining)
            if part.origin is Origin.GATHERED:
                index = next(remaining)
                if part.is_taken:
                    taken.append((tensor, index))
                rows, tensor = index.shape[0], tensor.index_select(0, index)
                tensor = tensor.flatten(0, 1) if part.is_joined else tensor
                tensor = tensor.unsqueeze(1) if part.is_flat else tensor
            elif part.origin is Origin.GIVEN:
                rows = tensor.shape[0]
            arguments.append(tensor)
        for chunk, index in taken:
            chunk.index_fill_(0, index, 0)
        given = []
        for written, values in zip(self.results, self.function(rows, *arguments), strict=True):
            if written is None:
                given.append(values.contiguous())  # other code takes it, which knows no strides
            else:
                written.put(values, remaining)
        return tuple(given)

    def compile(self) -> Compiled:
        """The compiled way, checked against the plain one."""
        if not any(part.origin is not Origin.UNIFORM for part in self.parts):
            raise CannotCompile("no operand has rows")
        examples, free = self.examples(self._rows)
        compiled = compile_function(self.run, examples, free, self._slots())
        try:
            for rows in (*CHECKED, self._rows):
                self._check(compiled, rows)
        except CannotCompile:
            raise
        except Exception as error:  # code need not make sense for operands that are made up
            raise CannotCompile(f"it cannot be checked: {error}") from error
        return compiled

    @property
    def _is_large(self) -> bool:
        """Whether rows take so much memory that examples have few of them."""
        parts = [part for part in (*self.parts, *self.results) if part is not None]
        elements = sum(prod(part.shape) for part in parts)
        return elements * (FIRST_CHUNK + ROWS) > MOST_ELEMENTS

    @property
    def _rows(self) -> int:
        """The rows of examples."""
        return FEW_ROWS if self._is_large else ROWS

    def _slots(self) -> list[int]:
        """Which of the tensors are slots."""
        is_slots: list[bool] = []
        for part in (*self.parts, *self.results):
            if isinstance(part, Written):
                is_slots += [False, True, False] if part.is_merged else [False, True]
            elif part and part.origin is Origin.GATHERED:
                is_slots += [False, True]
            elif part is not None:
                is_slots.append(False)
        return [place for place, has_slots in enumerate(is_slots) if has_slots]

    def examples(self, rows: int) -> tuple[list[torch.Tensor], list[set[int]]]:
        """Tensors to compile for and to check with, and their free dimensions."""
        examples: list[torch.Tensor] = []
        free: list[set[int]] = []
        draw = torch.Generator().manual_seed(rows)  # the caller's draws stay as they are
        chunk = (SMALL_CHUNK if self._is_large else FIRST_CHUNK) + rows

        def add(tensor: torch.Tensor, dimensions: set[int]) -> None:
            examples.append(tensor)
            free.append(dimensions)

        for part in (*self.parts, *self.results):
            if part is None:
                continue
            if isinstance(part, Written) or part.origin is Origin.GATHERED:
                chunk += 2
                row = part.shape if isinstance(part, Written) else part.stored
                add(_values(draw, (chunk, *row), part.dtype).to(part.device), {0})
                picked = torch.randperm(chunk, generator=draw)[:rows]
                add(picked.clone().to(part.device), {0})
                if isinstance(part, Written) and part.is_merged:
                    add((torch.arange(rows) % 2 == 0).to(part.device), {0})
            elif part.origin is Origin.GIVEN:
                add(_values(draw, (rows, *part.shape), part.dtype).to(part.device), {0})
            else:
                add(_weights(draw, part.shape, part.dtype).to(part.device), set())
        return examples, free

    def _check(self, compiled: Compiled, rows: int) -> None:
        examples, _ = self.examples(rows)
        theirs = [tensor.clone() for tensor in examples]
        with _full_precision():
            expected = [*self.run(*examples), *examples]
            found = [*compiled(list(theirs)), *theirs]
        for one, other in zip(found, expected, strict=True):
            if not _agree(one, other):
                raise CannotCompile(f"compiled and plain results differ for {rows} rows")

    def gives_own(self, compiled: Compiled) -> bool:
        """Whether no result is an operand that was passed on."""
        examples, _ = self.examples(self._rows)
        places = {tensor.untyped_storage().data_ptr() for tensor in examples}
        given = compiled(list(examples))
        return all(values.untyped_storage().data_ptr() not in places for values in given)

    def gain(self, compiled: Compiled, rows: int) -> float:
        """How many times as fast the compiled way is for so many rows."""
        examples, _ = self.examples(rows)
        plain = _seconds(lambda: self.run(*examples), examples[0].device)
        fused = _seconds(lambda: compiled(list(examples)), examples[0].device)
        return plain / fused


def _agree(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether results differ no more than rounding explains, which goes by the largest of them:
    operands that are made up may grow from step to step, and then cancel out.
    """
    tolerance = TOLERANCES.get(one.element_size(), 0.0) if one.is_floating_point() else 0.0
    largest = 1.0
    if tolerance and other.numel():
        largest = max(largest, float(other.nan_to_num(0.0, 0.0, 0.0).abs().max()))
    return torch.allclose(one, other, tolerance, tolerance * largest, equal_nan=True)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Products without TensorFloat32, in which differences in the last bits grow large."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _values(draw: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Random floats; zeros else, which are in range for whatever they may mean."""
    if dtype.is_floating_point:
        return torch.randn(shape, generator=draw).to(dtype)
    return torch.zeros(shape, dtype=dtype)


def _weights(draw: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Random floats such that a product keeps the size of what it is given: in a chain of products
    that makes it larger, so do differences in the last bits.
    """
    values = _values(draw, shape, dtype)
    return values / shape[-1] ** 0.5 if dtype.is_floating_point and len(shape) > 1 else values


def _seconds(call: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """The least of some times."""
    call()
    times = []
    for _ in range(repeats):
        _finish(device)
        began = time.perf_counter()
        call()
        _finish(device)
        times.append(time.perf_counter() - began)
    return min(times)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def contiguous(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether tensors lie in memory as those that code was compiled for."""
    return all(map(torch.Tensor.is_contiguous, tensors))
