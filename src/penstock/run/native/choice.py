"""Whether loops run as native code: where there is a compiler, and nobody has switched it off."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial

from penstock.calls.autocast import OFF, Autocast
from penstock.ir.graph import Block, Graph
from penstock.ir.program import Program, RowLoop
from penstock.passes.pipeline import program_to_graph
from penstock.run.native.compiling import has_numba

log = logging.getLogger("penstock")

_is_on: ContextVar[bool] = ContextVar("native_loops", default=True)


@contextmanager
def native_loops(is_on: bool) -> Iterator[None]:
    """Functions that are first called inside have their loops compiled, or not."""
    token = _is_on.set(is_on)
    try:
        yield
    finally:
        _is_on.reset(token)


def make_graph(
    program: Program, default_dtype: str, autocast: Autocast, *, opens_windows: bool = False
) -> Graph:
    """The graph of a program, with loops closed that can run as native code."""
    make = partial(program_to_graph, program, default_dtype, opens_windows=opens_windows)
    if not _is_on.get() or autocast != OFF:
        return make()
    graph = make(closes_loops=True)
    if has_numba() or not _has_closed_loops(graph):
        return graph
    _say_what_is_missing()
    return make()


def is_closed_loop(block: Block) -> bool:
    """Whether a block is a closed loop."""
    return any(isinstance(node.operation, RowLoop) for node in block.nodes)


def _has_closed_loops(graph: Graph) -> bool:
    nodes = (node.operation for context in graph.contexts for node in context.nodes)
    return any(isinstance(operation, Block) and is_closed_loop(operation) for operation in nodes)


@lru_cache(maxsize=1)
def _say_what_is_missing() -> None:
    log.warning("loops over scalars are interpreted: pip install 'penstock[native]' compiles them")
