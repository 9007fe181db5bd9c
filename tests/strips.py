"""Stands in for what Inductor generates, so that strips run without its compiler: each launch that
native code runs calls back into Python, with the pointers that it would give to kernels.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from penstock.autodiff import strip_way
from penstock.autodiff.taped_run import TapedRun
from penstock.plan.limits import limits
from penstock.plan.planners import planning
from penstock.run import distinct
from penstock.run.engine import Run
from penstock.run.fused.inductor import Compiled
from penstock.run.kept_plans import KeptPlans
from penstock.run.strips import forms
from penstock.run.strips import library as strip_library
from penstock.run.strips.arguments import Argument
from penstock.run.strips.batch import Batch
from penstock.run.strips.code import Made, NativeCode
from penstock.run.strips.library import library
from penstock.run.strips.recorder import MOST_PARAMETERS
from tests.fused import fused_without_compiler

#: Why tests of strips are left out, where they are.
REASON = "native code needs a C++ compiler and torch's BLAS"

KERNEL, ARGUMENT, BUFFER, SIZE = 1, 0, 1, 2
#: Rows of examples, and how many slots their arenas have.
FEW_ROWS, SIZE_OF_CHUNKS = (3, 5), 7


def has_strips() -> bool:
    """Whether native code can run launches here."""
    return library() is not None


def tensor_at(address: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """A tensor over memory of others."""
    size = prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(tuple(shape), dtype=dtype)
    memory = (ctypes.c_char * size).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))


def called_back(compiled: Compiled, arguments: Sequence[Argument], name: str) -> NativeCode | None:
    """Code of one step: it calls Python."""
    made = results_of(compiled, arguments)
    if made is None or any(argument.dtype.is_complex for argument in arguments):
        return None
    count = len(arguments)

    def call(*values: int) -> None:
        pointers, sizes, places = values[:count], values[count : 2 * count], values[2 * count :]
        tensors = [
            tensor_at(pointer, item.dtype, (size, *item.shape) if item.is_free else item.shape)
            for pointer, size, item in zip(pointers, sizes, arguments, strict=True)
        ]
        with torch.no_grad():
            given = compiled(tensors)
        for place, result in zip(places, given, strict=True):
            tensor_at(place, result.dtype, result.shape).copy_(result)

    operands = [word for k in range(count) for word in (ARGUMENT, k, 0)]
    operands += [word for k in range(count) for word in (SIZE, k, 1)]
    operands += [word for k in range(len(made)) for word in (BUFFER, k, 0)]
    parameters = len(operands) // 3
    if parameters > MOST_PARAMETERS:
        return None
    callback = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * parameters)(call)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    rows = next(k for k, argument in enumerate(arguments) if argument.has_rows)
    buffers = []
    for k, item in enumerate(made):
        buffers += (item.bytes_a_row, rows if item.entries else -1, k)
    step = [KERNEL, 4 + len(operands), address, parameters, *operands]
    words = np.array([len(made), 1, *buffers, *step], np.int64)
    return NativeCode(words, made, len(made), (), (callback,))


def results_of(compiled: Compiled, arguments: Sequence[Argument]) -> tuple[Made, ...] | None:
    """What code gives, found by trying it for two numbers of rows; None where native code could not
    provide for it.
    """
    if not any(argument.has_rows for argument in arguments):
        return None
    try:
        tried = [compiled(examples(arguments, rows)) for rows in FEW_ROWS]
    except (IndexError, RuntimeError):  # code need not make sense for operands that are made up
        return None
    made = []
    for pointer, (result, other) in enumerate(zip(*tried, strict=True)):
        if result.shape == other.shape:
            size = result.numel() * result.element_size()
            made.append(Made(result.dtype, tuple(result.shape), 0, size, pointer))
            continue
        if result.shape[1:] != other.shape[1:] or result.shape[0] % FEW_ROWS[0]:
            return None
        size = result.numel() * result.element_size() // FEW_ROWS[0]
        entries = result.shape[0] // FEW_ROWS[0]
        made.append(Made(result.dtype, tuple(result.shape[1:]), entries, size, pointer))
    return tuple(made)


def examples(arguments: Sequence[Argument], rows: int) -> list[torch.Tensor]:
    """Tensors of zeros, and slots one after the other."""
    found = []
    for item in arguments:
        is_index = item.has_rows and not item.shape and item.dtype == torch.int64
        shape = (rows if item.has_rows else SIZE_OF_CHUNKS, *item.shape)
        zeros = torch.zeros(shape if item.is_free else item.shape, dtype=item.dtype)
        found.append(torch.arange(rows) if is_index else zeros)
    return found


@contextmanager
def in_strips(*, keeps_plans: bool = False) -> Iterator[None]:
    """Plans inside, fresh ones or kept ones, are run by native code from the second call of a
    program on. Pieces of launches have few rows, few factors of weight gradients wait, and few rows
    are enough to look which ones are the same.
    """
    with (
        fused_without_compiler(),
        planning("always"),
        limits(admitted_rows=(1 << 14) - (5 if keeps_plans else 4)),
        patch.object(KeptPlans, "is_worth_keeping", lambda plans, key: keeps_plans),
        patch.object(forms, "read_code", called_back),
        patch.multiple(strip_way, WAITING_ROWS=5, WAITING_BYTES=0),
        patch.object(strip_library, "PIECE_ROWS", 3),
        patch.object(distinct, "LEAST_ROWS", 2),
    ):
        yield


@contextmanager
def noted_strips() -> Iterator[list[tuple[Run, Batch, int]]]:
    """The strips of runs inside, as they come: which run, its batch, and how many launches."""
    noted: list[tuple[Run, Batch, int]] = []

    def noting(kind: type[Run]) -> Any:
        plain = kind.note_strip

        def note(run: Run, batch: Batch, begin: int, end: int) -> None:
            noted.append((run, batch, end - begin))
            plain(run, batch, begin, end)

        return patch.object(kind, "note_strip", note)

    with noting(Run), noting(TapedRun):
        yield noted
