"""The compiler of the kernel: Numba, where it is installed; compiled code is kept on disk.

The functions that are called from outside are compiled when their module is imported; the types of
their parameters follow from the names. A call hands over all arrays that it is given and counts
references to them, which takes longer than the work for a few rows: the kernel calls functions for
batches of rows, counts nothing for arrays that its caller holds, and contains what it calls most.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.core.cgutils import create_struct_proxy
from numba.extending import intrinsic

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


def compiled_in_place(function: Compiled) -> Compiled:
    """The same for a function that makes no arrays: it becomes a part of what calls it, and counts
    no references. Handing over so many arrays takes longer than most of what it does.
    """
    made: Any = numba.njit(nogil=True, error_model="numpy", _nrt=False, forceinline=True)(function)
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


@intrinsic  # type: ignore[untyped-decorator]
def borrowed(_: Any, arrays: Any) -> Any:
    """A tuple of arrays without counts of references: whoever calls holds them all the while.

    They come back to a caller in Python as the very same objects.
    """

    def generate(context: Any, builder: Any, _: Any, given: Any) -> Any:
        found = []
        for place, kind in enumerate(arrays):
            array = create_struct_proxy(kind)(
                context, builder, builder.extract_value(given[0], place)
            )
            array.meminfo = array.meminfo.type(None)
            found.append(array._getvalue())
        return context.make_tuple(builder, arrays, found)

    return arrays(arrays), generate


def _type_of(parameter: str) -> Any:
    if parameter in TABLES:
        return numba.int64[:, ::1]
    return numba.int64[::1] if parameter in LISTS else numba.int64
