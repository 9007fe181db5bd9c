"""Reads what Inductor has generated for a launch into words that `code.hpp` carries out.

The generated Python is run once on stand-ins that write down what it does. What is not understood
gives no code: such a launch stays with Python.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType

import numpy as np
import torch

from penstock.plan.schedule import Integers
from penstock.run.fused.inductor import Compiled, generated
from penstock.run.strips.arguments import Argument
from penstock.run.strips.kernels import kernels_of
from penstock.run.strips.recorder import Recorder
from penstock.run.strips.sizes import Extent, Refused, bytes_of, exact, is_contiguous
from penstock.run.strips.stand_ins import ARGUMENT, BUFFER, View, views_of

log = logging.getLogger("penstock")

#: Stands for the result of a buffer that holds none.
TEMPORARY = -1


@dataclass(frozen=True, slots=True)
class Made:
    """A result: a contiguous tensor in memory that the caller provides, or an argument as it is."""

    dtype: torch.dtype
    #: Without dimension 0, if that counts rows.
    shape: tuple[int, ...]
    #: Dimension 0 is so many times the number of rows; 0: the result is the same for any number of
    #: them.
    entries: int
    #: The bytes of a row; all bytes where there are no rows.
    bytes_a_row: int
    #: Which of the pointers to results it lies at, or at which place the argument is that it is;
    #: some results may share one.
    pointer: int
    is_argument: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class NativeCode:
    """A launch as the interpreter runs it."""

    #: Contiguous; `code.hpp` tells their order.
    words: Integers
    #: What is given, in order.
    results: tuple[Made, ...]
    #: The pointers to results that it takes.
    pointers: int
    #: For each product of float32 values the rows and the columns of its matrix.
    products: tuple[tuple[int, int], ...]
    #: What keeps kernels in memory.
    kept: tuple[object, ...]


def read_code(compiled: Compiled, arguments: Sequence[Argument], name: str) -> NativeCode | None:
    """The words for compiled code that takes such arguments; None where it is not understood."""
    function = generated(compiled)
    if function is None:
        log.debug("%s is not read: it is no generated Python", name)
        return None
    try:
        return _read(function, arguments)
    except Exception as problem:  # generated code may do anything
        log.debug("%s is not read: %s: %s", name, type(problem).__name__, problem)
        return None


def _read(function: FunctionType, arguments: Sequence[Argument]) -> NativeCode:
    views, rows = views_of(arguments)
    whole = [bytes_of(view.shape, view.dtype) for view in views]
    recorder = Recorder()
    names = recorder.names(kernels_of(function))
    given = FunctionType(function.__code__, names)(names["self"], views)
    holders = _holders(given)
    memory = {ARGUMENT: whole, BUFFER: recorder.buffers}
    made = tuple(_made(view, memory[view.kind][view.index], rows, holders) for view in given)
    words = _words(recorder, holders)
    kept = tuple(dict.fromkeys(recorder.kept))
    return NativeCode(words, made, len(holders), tuple(recorder.products), kept)


def _holders(given: object) -> dict[int, int]:
    """For each buffer that holds a result the number of its pointer."""
    if not isinstance(given, tuple) or not all(isinstance(view, View) for view in given):
        raise Refused("a result that is no tensor")
    buffers = dict.fromkeys(view.index for view in given if view.kind == BUFFER)
    return {buffer: number for number, buffer in enumerate(buffers)}


def _made(view: View, memory: Extent, rows: int | None, holders: dict[int, int]) -> Made:
    taken = bytes_of(view.shape, view.dtype)
    is_whole = view.offset == 0 and exact(taken) == exact(memory)
    if not is_whole or not is_contiguous(view.shape, view.strides):
        raise Refused("a result with gaps, or a piece of a buffer")
    is_argument = view.kind == ARGUMENT
    pointer = view.index if is_argument else holders[view.index]
    fixed = tuple(extent for extent in view.shape if isinstance(extent, int))
    if len(fixed) == len(view.shape):
        return Made(view.dtype, fixed, 0, exact(taken)[0], pointer, is_argument)
    entries, argument = exact(view.shape[0])
    if argument is None or argument != rows or len(fixed) != len(view.shape) - 1:
        raise Refused(f"a result that is not sized by rows: {fixed} and {(entries, argument)}")
    return Made(view.dtype, fixed, entries, exact(taken)[0], pointer, is_argument)


def _words(recorder: Recorder, holders: dict[int, int]) -> Integers:
    words = [len(recorder.buffers), len(recorder.steps)]
    for number, memory in enumerate(recorder.buffers):
        words += (*exact(memory), holders.get(number, TEMPORARY))
    for step in recorder.steps:
        words += step
    return np.array(words, np.int64)
