"""Whether loops run as native code: where there is a compiler, and nobody has switched it off.

Numba compiles for the CPU, Triton for CUDA devices; either may be missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import NamedTuple

from penstock.calls.autocast import OFF, Autocast
from penstock.ir.graph import Block, Graph
from penstock.ir.program import Program, RowLoop
from penstock.passes.pipeline import program_to_graph
from penstock.passes.row_loops import device_of_loop
from penstock.run.native.compiling import has_numba
from penstock.run.native.triton_compiling import has_triton

log = logging.getLogger("penstock")

#: Where whole loops are closed.
WHOLE = ("whole cuda",)

_is_on: ContextVar[bool] = ContextVar("native_loops", default=True)


@contextmanager
def native_loops(is_on: bool) -> Iterator[None]:
    """Functions that are first called inside have their loops compiled, or not."""
    token = _is_on.set(is_on)
    try:
        yield
    finally:
        _is_on.reset(token)


def are_loops_native() -> bool:
    """Whether functions that are first called now have their loops compiled."""
    return _is_on.get()


def make_graph(
    program: Program,
    default_dtype: str,
    autocast: Autocast,
    *,
    opens_windows: bool = False,
    closes_whole_loops: bool = False,
) -> Graph:
    """The graph of a program, with loops closed that can run as native code, or as a whole."""
    make = partial(program_to_graph, program, default_dtype, opens_windows=opens_windows)
    if not _is_on.get() or autocast != OFF:
        return make()
    kinds = {*_COMPILERS, *(WHOLE if closes_whole_loops else ())}
    graph = make(closes_loops=kinds)
    missing = {kind for kind in _closed_on(graph) if not _COMPILERS[kind].is_there()}
    if not missing:
        return graph
    for kind in sorted(missing):
        _say_what_is_missing(kind)
    return make(closes_loops=kinds - missing)


def is_closed_loop(block: Block) -> bool:
    """Whether a block is a closed loop."""
    return any(isinstance(node.operation, RowLoop) for node in block.nodes)


def is_whole_loop(block: Block) -> bool:
    """Whether a block is a closed loop that its device runs as a whole."""
    operation = block.nodes[0].operation
    return isinstance(operation, RowLoop) and operation.is_whole


def _closed_on(graph: Graph) -> set[str]:
    """The kinds of devices on which loops of row-wise arithmetic are closed."""
    nodes = (node.operation for node in graph.nodes)
    blocks = [item for item in nodes if isinstance(item, Block) and is_closed_loop(item)]
    rowwise = [block for block in blocks if not is_whole_loop(block)]
    return {device_of_loop(block).split(":")[0] for block in rowwise}


class _Compiler(NamedTuple):
    """What compiles the loops of a kind of device."""

    is_there: Callable[[], bool]
    #: What is said where it is not.
    missing: str


_COMPILERS = {
    "cpu": _Compiler(
        lambda: has_numba(),
        "loops over scalars are interpreted: pip install 'penstock[native]' compiles them",
    ),
    "cuda": _Compiler(
        lambda: has_triton(),
        "loops over scalars on CUDA devices are interpreted: pip install triton compiles them",
    ),
}


@lru_cache
def _say_what_is_missing(kind: str) -> None:
    log.warning(_COMPILERS[kind].missing)
