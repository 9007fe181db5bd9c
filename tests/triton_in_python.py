"""Triton kernels of native loops run by Python, row by row, where there is no GPU and no Triton.

A stand-in for `triton.language` computes on NumPy scalars of the same dtypes. Python lets a name
out of a branch and Triton does not, so every kernel is first checked for names that are read where
Triton has not got them.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from penstock.run import executable
from penstock.run.native import triton_launching
from penstock.run.native.device_block import DeviceLoopBlock
from penstock.run.native.kernels import Kernel
from penstock.run.native.triton_compiling import function_text


class Pointer:
    """A place in an array."""

    def __init__(self, array: Any, place: int = 0) -> None:
        self.array, self.place = array, place

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self.array, self.place + int(offset))


class Row(SimpleNamespace):
    """The row that runs."""

    number = 0


def _store(pointer: Pointer, value: Any) -> None:
    pointer.array[pointer.place] = value


def _where(condition: Any, left: Any, right: Any) -> Any:
    assert type(left) is type(right), "Triton would promote"
    return left if condition else right


LANGUAGE = SimpleNamespace(
    int1=np.bool_,
    int32=np.int32,
    int64=np.int64,
    float32=np.float32,
    float64=np.float64,
    full=lambda shape, value, dtype: dtype(value),
    cast=lambda value, dtype: dtype(value),
    load=lambda pointer, volatile=False: pointer.array[pointer.place],
    store=_store,
    program_id=lambda axis: np.int32(Row.number),
    where=_where,
    abs=abs,
    maximum=max,
    debug_barrier=lambda: None,
)

_NUMPY = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "sqrt_rn": "sqrt"}


class _Libdevice:
    """Functions that give the dtype they get."""

    div_rn = staticmethod(np.divide)
    pow = staticmethod(np.power)

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        if name == "erf":
            return lambda value: type(value)(math.erf(value))
        return getattr(np, _NUMPY.get(name, name))  # type: ignore[no-any-return]


def names_for(kernel: Kernel) -> dict[str, Any]:
    """What the text of a kernel reads."""
    return {
        "tl": LANGUAGE,
        "libdevice": _Libdevice(),
        "PULSE": kernel.pulse,
        "floor_divide": lambda left, right: left // right if right else right,
        "floor_remainder": lambda left, right: left % right if right else right,
    }


def compile_in_python(kernel: Kernel, device: torch.device) -> Callable[..., None]:
    """What runs a kernel for rows on the host."""
    text = function_text(kernel)
    check_scopes(text)
    names = names_for(kernel)
    exec(text, names)

    def launch(rows: int, arguments: Sequence[torch.Tensor]) -> None:
        pointers = [Pointer(argument.detach().view(-1).numpy()) for argument in arguments]
        for Row.number in range(rows):
            with np.errstate(all="ignore"):
                names["kernel"](*pointers)

    return launch


@contextmanager
def triton_in_python() -> Iterator[list[str]]:
    """Functions that are first called inside run their closed loops as Triton kernels in Python;
    gives the texts of the kernels.
    """
    texts: list[str] = []

    def compile_and_note(kernel: Kernel, device: torch.device) -> Callable[..., None]:
        texts.append(function_text(kernel))
        return compile_in_python(kernel, device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executable, "RowLoopBlock", DeviceLoopBlock)
        patch.setattr(triton_launching, "compile_kernel", compile_and_note)
        words = lambda: torch.zeros(2, dtype=torch.int64)  # noqa: E731
        patch.setattr(triton_launching, "shared_words", words)
        patch.setattr(triton_launching, "wait", lambda device, words: None)
        yield texts


def check_scopes(text: str) -> None:
    """Every name is defined where Triton reads it: before, or in both arms of a branch."""
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    known = {"tl", "libdevice", "PULSE", "floor_divide", "floor_remainder", "float"}
    _check(function.body, known | {argument.arg for argument in function.args.args})


def _check(statements: Sequence[ast.stmt], known: set[str]) -> set[str]:
    """The names that are known after the statements."""
    for statement in statements:
        match statement:
            case ast.While(test=test, body=body):
                _read(test, known)
                _check(body, set(known))
            case ast.If(test=test, body=body, orelse=other):
                _read(test, known)
                known |= _check(body, set(known)) & _check(other, set(known))
            case ast.Assign(targets=[target], value=value):
                _read(value, known)
                known |= {name.id for name in ast.walk(target) if isinstance(name, ast.Name)}
            case ast.AugAssign() | ast.Expr() | ast.Pass():
                _read(statement, known)
            case _:
                raise AssertionError(f"Triton has no {ast.unparse(statement)}")
    return known


def _read(node: ast.AST, known: set[str]) -> None:
    read = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    assert read <= known, f"{ast.unparse(node)} reads {read - known}"
