"""What a block takes in: rows, uniform tensors and sizes; how sizes are read off arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from penstock.run.batched.sizes import ROWS, Point


@dataclass(frozen=True, slots=True)
class BlockInput:
    """One input of a single-instance function, as its caller sees it."""

    #: "row" (its own value for each row), "uniform" (one value for all rows) or "size" (a Python
    #: int).
    kind: str
    #: The name of a torch dtype, "float32".
    dtype: str
    #: The shape for one instance; a string names a dynamic dimension, one size in a launch.
    shape: tuple[int | str, ...]
    #: For kind "size": the symbol whose value is passed.
    symbol: str | None = None
    device: str = "cpu"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype), self.dtype
        return dtype

    def sizes_at(self, point: Point, *, batched: bool) -> tuple[int, ...]:
        """The concrete shape at a point, with the leading batch dimension if this is a row."""
        shape = tuple(point[size] if isinstance(size, str) else size for size in self.shape)
        return (point[ROWS], *shape) if batched and self.kind == "row" else shape


@dataclass(frozen=True, slots=True)
class SymbolSource:
    """Where the value of a symbol is found among the arguments of a launch."""

    name: str
    argument: int
    #: The dimension of the argument as launched; None where the argument is the size itself.
    dimension: int | None

    def read(self, arguments: Sequence[object]) -> int:
        """The size this launch has."""
        argument = arguments[self.argument]
        if self.dimension is None:
            assert isinstance(argument, int)
            return argument
        assert isinstance(argument, torch.Tensor)
        return argument.shape[self.dimension]


def symbol_sources(inputs: Sequence[BlockInput]) -> tuple[SymbolSource, ...]:
    """One source for each symbol, in the order in which the inputs name them; sizes first where
    both exist.
    """
    sources: dict[str, SymbolSource] = {}
    for position, spec in enumerate(inputs):
        if spec.kind == "size":
            assert spec.symbol is not None
            sources[spec.symbol] = SymbolSource(spec.symbol, position, None)
    for position, spec in enumerate(inputs):
        lead = 1 if spec.kind == "row" else 0
        for dimension, size in enumerate(spec.shape):
            if isinstance(size, str):
                source = SymbolSource(size, position, dimension + lead)
                sources.setdefault(size, source)
    assert ROWS not in sources, f"{ROWS!r} is the batch dimension"
    return tuple(sources.values())
