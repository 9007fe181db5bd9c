"""The compiler of the kernel: Numba, where it is installed; compiled code is kept on disk.

The functions that are called from outside are compiled when their module is imported; the types of
their parameters follow from the names. A call counts references to all arrays that it is given: the
kernel calls functions for batches of rows, never for single rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numba

from penstock.plan.native.kept_code import cache_folder, can_keep

#: Parameters that are tables; those in `LISTS` are lists of integers, all others are integers.
TABLES = {"arenas", "contexts", "instance_values", "nodes", "results", "sequences"}
LISTS = {
    "arrived", "chunks", "code", "constants", "control", "counts", "data", "expanding", "frames",
    "free_rows", "groups", "heads", "heap", "held", "in_data", "limits", "lists", "live", "moves",
    "pool", "queue", "queue_head", "queue_tail", "queue_width", "scalars", "table_base",
    "table_length", "table_values", "unused", "waits",
}  # fmt: skip

Compiled = TypeVar("Compiled", bound=Callable[..., Any])


def compiled(function: Compiled) -> Compiled:
    """A part of the kernel, compiled with what calls it; its code is the same as that of plain
    Python on numpy arrays.
    """
    made: Any = numba.njit(nogil=True, error_model="numpy")(function)
    return made  # type: ignore[no-any-return]


def compiled_at_once(function: Compiled) -> Compiled:
    """A function that is called from outside: it is compiled, or found on disk, at import."""
    types = tuple(map(_type_of, inspect.signature(function).parameters))
    config: Any = numba.config
    before, folder = config.CACHE_DIR, cache_folder()
    is_kept = can_keep(folder)
    config.CACHE_DIR = str(folder) if is_kept else before
    try:
        made: Any = numba.njit(types, cache=is_kept, nogil=True, error_model="numpy")(function)
    finally:
        config.CACHE_DIR = before
    return made  # type: ignore[no-any-return]


def _type_of(parameter: str) -> Any:
    if parameter in TABLES:
        return numba.int64[:, ::1]
    return numba.int64[::1] if parameter in LISTS else numba.int64
