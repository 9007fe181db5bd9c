"""The way back through a plan that was run as a CUDA graph, as another graph.

Cotangents are put into its slots, it is replayed, and gradients are copied out: the next backward
pass writes over them. Who keeps the graph of autograd for another pass takes the plain way, on the
values that the forward graph has left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.autodiff.page import Page, second_backward
from penstock.autodiff.reverse import Reversal
from penstock.autodiff.tape import Entry, Taping
from penstock.autodiff.taped_run import TapedRun
from penstock.autodiff.versions import check_version
from penstock.autodiff.way_back import WayBack
from penstock.run.capturing import capture

if TYPE_CHECKING:
    from penstock.autodiff.ends import Ends

log = logging.getLogger("penstock")


class CapturedWay:
    """A way back as a CUDA graph, with the memory that it works in."""

    def __init__(
        self, ends: Ends, way: WayBack, put: Callable[[Reversal], None], device: torch.device
    ) -> None:
        #: Names it among others, so it must not be used again for another.
        self.way = way
        self.reversal = Reversal(ends.run, keep=True, checks_nan=False)
        put(self.reversal)
        self.graph = capture(lambda: self.reversal.go(ends.entries, way), device)

    def replay(self, run: TapedRun, put: Callable[[Reversal], None]) -> Reversal:
        """Go it from cotangents that `put` puts into slots; the gradients."""
        own = self.reversal
        for arena in own.arenas.values():
            arena.present = np.zeros_like(arena.present)
        put(own)
        self.graph.replay()
        found = Reversal(run, keep=True, checks_nan=False)
        found.arenas = own.arenas
        found.uniform_gradients = {k: values.clone() for k, values in own.uniform_gradients.items()}
        for number, present in self.way.present.items():
            found.arena(number).present = present
        return found


def replay_way(ends: Ends, way: WayBack, put: Callable[[Reversal], None]) -> Reversal | None:
    """What a way back leads to, gone as a CUDA graph for the last time; None where it cannot be."""
    run = ends.run
    if not isinstance(run, TapedRun) or run.captured is None or _is_used(ends.entries):
        return None
    for number, version in run.versions.items():
        check_version(run.uniforms[number], version)
    captured = run.captured
    if id(way) not in captured.ways:
        captured.ways[id(way)] = _capture(ends, way, put, captured.device)
    found: CapturedWay | None = captured.ways[id(way)]
    if found is None:
        return None
    replayed = found.replay(run, put)
    if _use(ends.entries, way):
        captured.let_go()
    return replayed


def require_values(run: Taping) -> None:
    """Raise torch's error where another run has written over the values that one has left."""
    captured = run.captured if isinstance(run, TapedRun) else None
    if captured is not None and not captured.is_held_by(run):
        raise second_backward()


def _capture(
    ends: Ends, way: WayBack, put: Callable[[Reversal], None], device: torch.device
) -> CapturedWay | None:
    try:
        return CapturedWay(ends, way, put, device)
    except Exception as problem:  # torch tells in many ways that a call cannot be captured
        log.info("a way back runs without a CUDA graph: %s", problem)
        return None


def _use(entries: Sequence[Entry], way: WayBack) -> bool:
    """Note which rows have gone backward; False where others of their launches may still do so."""
    is_over = True
    for entry, step in zip(reversed(entries), way.steps, strict=True):
        if isinstance(entry, Page) and isinstance(step, tuple) and step:
            for half in step:
                entry.use(half.index, is_last=True)
            is_over &= entry.is_used_up
    return is_over


def _pages(entries: Iterable[Entry]) -> Iterable[Page]:
    return (entry for entry in entries if isinstance(entry, Page))


def _is_used(entries: Iterable[Entry]) -> bool:
    """Whether some rows have gone backward already."""
    return any(page.consumed is not None for page in _pages(entries))
