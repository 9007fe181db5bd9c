"""How arenas of a run were made up, to make others like them: segments run again in arenas of their
own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from penstock.autodiff.bounded.ledger import lent_ranges
from penstock.autodiff.versions import check_version, version_of
from penstock.plan.schedule import Kind
from penstock.run.arenas import Arena


class Layout(NamedTuple):
    """How an arena is made up: inputs as they are, and how long other chunks are."""

    kind: Kind
    starts: list[int]
    chunks: list[torch.Tensor | int]
    #: The version of each input.
    versions: list[int]
    is_held: bool

    def build(self, number: int) -> Arena:
        """An arena like it, with values in inputs only."""
        arena = Arena(self.kind, number)
        for start, chunk, version in zip(self.starts, self.chunks, self.versions, strict=True):
            if isinstance(chunk, int):
                arena.grow(start, chunk)
            else:
                check_version(chunk, version)
                arena.install(start, chunk)
        return arena


def layout_of(arena: Arena) -> Layout:
    """How an arena is made up."""
    if arena.is_held:
        return Layout(arena.kind, [], [], [], True)
    lent = {start for start, _ in lent_ranges(arena)}
    chunks: list[torch.Tensor | int] = [
        chunk if start in lent else len(chunk)
        for start, chunk in zip(arena.starts, arena.chunks, strict=True)
    ]
    versions = [0 if isinstance(chunk, int) else version_of(chunk) for chunk in chunks]
    return Layout(arena.kind, list(arena.starts), chunks, versions, False)
