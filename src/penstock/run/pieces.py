"""Launches of many rows in pieces: what a block computes in between stays in the processor's cache.

A block may compute more for a row than it takes and gives: a loss over all words of a vocabulary is
one number. For thousands of rows that is memory that the system clears in every call, and hands out
again for nothing else. Rows know nothing of each other, so pieces of them give the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from sys import maxsize

import torch

from penstock.ir.graph import Block
from penstock.ir.types import Type
from penstock.plan.divided import pieces_of_rows
from penstock.run.batched import BlockInput
from penstock.run.batched.emit import BatchFunction

#: Numbers that stay in a cache.
IN_CACHE = 1 << 19

#: Rows for which a product takes longer than reading its matrix from memory.
ENOUGH_ROWS = 128


def most_rows(block: Block, inputs: Sequence[BlockInput]) -> int:
    """The rows that a block of one size runs at once: any number on a device, and where nothing
    inside is wider than what is outside anyway. What is the same for all rows is read by every
    piece: where it does not stay in the cache either, pieces are no narrower than is worth that.
    """
    rows = [spec for spec in inputs if spec.kind == "row"]
    made = [value for node in block.nodes for value in node.outputs]
    outside = [spec.shape for spec in rows] + [_shape(value.type) for value in block.results]
    inside = _widest(_shape(value.type) for value in made)
    if inside <= _widest(outside) or any(spec.device != "cpu" for spec in rows):
        return maxsize
    common = sum(prod(_numbers(spec.shape)) for spec in inputs if spec.kind == "uniform")
    return max(ENOUGH_ROWS if common > IN_CACHE else 1, IN_CACHE // inside)


def _shape(kind: Type) -> tuple[int | str, ...]:
    return getattr(kind, "shape", ())


def _widest(shapes: Iterable[Sequence[int | str]]) -> int:
    """The most numbers of a row; a block of one size has dynamic dimensions for its rows alone."""
    return max(map(prod, map(_numbers, shapes)), default=0)


def _numbers(shape: Iterable[int | str]) -> list[int]:
    return [size for size in shape if isinstance(size, int)]


def run_in_pieces(
    function: BatchFunction,
    rows: int,
    width: int,
    inputs: Sequence[BlockInput],
    arguments: Sequence[torch.Tensor | int],
) -> list[torch.Tensor]:
    """What a function gives for all rows, at most so many at once."""
    made = []
    for piece in pieces_of_rows(rows, width):
        taken = (
            item[piece.start : piece.stop] if spec.kind == "row" else item  # type: ignore[index]
            for spec, item in zip(inputs, arguments, strict=True)
        )
        made.append(function(len(piece), *taken))
    return [torch.cat(results) for results in zip(*made, strict=True)]
