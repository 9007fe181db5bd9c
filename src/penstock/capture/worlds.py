"""Two worlds of fake tensors, in which every dynamic dimension has two different sizes.

Running a call in both worlds shows which dimensions of its results are dynamic: those that differ.
The pair of sizes names the symbol, so equal pairs are one symbol. What is the same in both worlds
is run once. A minimum that cuts off both sizes alike cannot be seen this way; sizes are chosen so
that this is rare.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from penstock.ir.types import Dimension, TensorType

#: One fake tensor per world; the same object twice where the worlds agree.
Fakes = tuple[torch.Tensor, torch.Tensor]
#: The size of one dimension in both worlds.
SizePair = tuple[int, int]


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def dtype_called(name: str) -> torch.dtype:
    """`torch.float32` for `float32`."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


@contextmanager
def quiet_fakes() -> Iterator[None]:
    """Keep torch from logging the failures of fake tensors, which surface as exceptions."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


class Worlds:
    """The fake tensors and the symbols of one trace."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode()
        #: The size of each symbol in both worlds; never changes once made.
        self.sizes: dict[str, SizePair] = {}
        self._symbols: dict[SizePair, str] = {}
        self._pairs = _prime_pairs(11)
        self._small_pairs: Iterator[SizePair] = iter([(2, 3), (3, 5), (5, 7)])

    def fresh_symbol(self) -> str:
        """A symbol that equals no other."""
        symbol = self.symbol(next(self._pairs))
        assert isinstance(symbol, str)
        return symbol

    def fresh_pair(self) -> SizePair:
        """Sizes for a whole number of which nothing is known; small, so that slices stay inside."""
        return next(self._small_pairs, None) or self.sizes[self.fresh_symbol()]

    def symbol(self, pair: SizePair) -> Dimension:
        """The dimension with these sizes."""
        if pair[0] == pair[1]:
            return pair[0]
        if pair not in self._symbols:
            symbol = f"n{len(self._symbols)}"
            self._symbols[pair] = symbol
            self.sizes[symbol] = pair
        return self._symbols[pair]

    def pair(self, dimension: Dimension) -> SizePair:
        """The sizes of a dimension in both worlds."""
        return self.sizes[dimension] if isinstance(dimension, str) else (dimension, dimension)

    def type_of(self, fakes: Fakes) -> TensorType:
        """The type that both worlds show together."""
        first, second = fakes
        shape = tuple(map(self.symbol, zip(first.shape, second.shape, strict=True)))
        return TensorType(dtype_name(first.dtype), shape, str(first.device))

    def fakes(self, type_: TensorType) -> Fakes:
        """Contiguous tensors of that type."""
        pairs = [self.pair(dimension) for dimension in type_.shape]
        first = self._empty(type_, [pair[0] for pair in pairs])
        if not type_.is_dynamic:
            return first, first
        return first, self._empty(type_, [pair[1] for pair in pairs])

    def fakes_like(self, tensor: torch.Tensor) -> Fakes:
        """Fakes with the sizes and strides of a real tensor."""
        with torch._C.DisableTorchFunction(), self.mode:
            fake = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )
        return fake, fake

    def _empty(self, type_: TensorType, shape: list[int]) -> torch.Tensor:
        with torch._C.DisableTorchFunction(), self.mode:
            return torch.empty(shape, dtype=dtype_called(type_.dtype), device=type_.device)


def _prime_pairs(start: int) -> Iterator[SizePair]:
    primes = (
        number
        for number in count(start)
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1))
    )
    while True:
        yield next(primes), next(primes)
