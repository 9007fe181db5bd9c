"""Two worlds of fake tensors, in which every dynamic dimension has two different sizes.

Running a call in both worlds shows which dimensions of its results are dynamic: those that differ.
The pair of sizes names the symbol, so equal pairs are one symbol. Pairs are chosen so that sizes
of different origin are not equal by chance, nor made so by adding or multiplying small numbers.
What is the same in both worlds is run once.

A slice with traced bounds may be shorter than its bounds say, so its symbol equals no other. What
its size is where the bounds are kept is its expected size. Calls that cannot take the sizes of the
symbols are tried with those: `x[:n] + y[:n]` is a program, in which torch compares the lengths when
it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import count

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from penstock.ir.program import Value
from penstock.ir.types import Dimension, TensorType

#: One fake tensor per world; the same object twice where the worlds agree.
Fakes = tuple[torch.Tensor, torch.Tensor]
#: The size of one dimension in both worlds.
SizePair = tuple[int, int]

#: The size of a dimension, and the start, stop and step of a slice of it; traced ones as values.
CutKey = tuple[Dimension, Value | int, Value | int | None, int]

#: Where sizes begin: whole numbers of which nothing is known fit into any dynamic dimension.
_FIRST_NUMBER, _FIRST_DIMENSION = 11, 1009


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


@cache
def device_name(device: torch.device) -> str:
    """`cuda:0` for that device."""
    return str(device)


def dtype_called(name: str) -> torch.dtype:
    """`torch.float32` for `float32`."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


class Worlds:
    """The fake tensors and the symbols of one trace."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode()
        #: The size of each symbol in both worlds; never changes once made.
        self.sizes: dict[str, SizePair] = {}
        #: The size of a symbol where slices are as long as their bounds say.
        self.expected: dict[str, SizePair] = {}
        #: Whole numbers that are equal; see `value_numbers`.
        self.known_numbers: dict[tuple[str, str, tuple[Value, ...]], Value] = {}
        self._symbols: dict[SizePair, str] = {}
        self._cuts: dict[CutKey, str] = {}
        self._hints: dict[Value, SizePair] = {}
        taken: set[int] = set()
        self._pairs = _prime_pairs(_FIRST_DIMENSION, taken)
        self._number_pairs = _prime_pairs(_FIRST_NUMBER, taken)
        self._small_pairs: Iterator[SizePair] = iter([(2, 3), (3, 5), (5, 7)])

    def fresh_symbol(self) -> str:
        """A symbol that equals no other."""
        symbol = self.symbol(next(self._pairs))
        assert isinstance(symbol, str)
        return symbol

    def hint(self, number: Value, *, is_small: bool) -> SizePair:
        """Sizes for a whole number of which nothing is known; small ones fit into more tensors."""
        if number not in self._hints:
            small = next(self._small_pairs, None) if is_small else None
            self._hints[number] = small or next(self._number_pairs)
        return self._hints[number]

    def cut_symbol(self, key: CutKey, expected: SizePair) -> str:
        """The size of a slice: one symbol for all slices with that key."""
        if key not in self._cuts:
            self._cuts[key] = symbol = self.fresh_symbol()
            self.expect(self.sizes[symbol], expected)
        return self._cuts[key]

    @property
    def has_cuts(self) -> bool:
        """Whether there is a slice with traced bounds."""
        return bool(self._cuts)

    def is_cut(self, symbol: Dimension) -> bool:
        """Whether it is the size of a slice with traced bounds."""
        return symbol in self._cuts.values()

    def settled(self, before: set[str], number: int) -> set[str]:
        """The symbols `before`, and those that follow from values with lower numbers."""
        known = before | {
            str(self.symbol(pair)) for value, pair in self._hints.items() if value.number < number
        }
        for (size, start, stop, _), symbol in self._cuts.items():
            values = [bound for bound in (start, stop) if isinstance(bound, Value)]
            is_known = isinstance(size, int) or size in known
            if is_known and all(value.number < number for value in values):
                known.add(symbol)
        return known

    def expect(self, pair: SizePair, expected: SizePair) -> None:
        """Note what a size is where slices are as long as their bounds say."""
        if min(expected) > 0 and expected != pair:
            symbol = self.symbol(pair)
            if isinstance(symbol, str):
                self.expected.setdefault(symbol, expected)

    def expected_pair(self, pair: SizePair) -> SizePair:
        """The sizes where slices are as long as their bounds say."""
        return self.expected.get(self._symbols.get(pair, ""), pair)

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
        first = self.empty(type_, [pair[0] for pair in pairs])
        if not type_.is_dynamic:
            return first, first
        return first, self.empty(type_, [pair[1] for pair in pairs])

    def fakes_like(self, tensor: torch.Tensor) -> Fakes:
        """Fakes with the sizes and strides of a real tensor."""
        with torch._C.DisableTorchFunction(), self.mode:
            fake = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )
        return fake, fake

    def empty(self, type_: TensorType, shape: list[int]) -> torch.Tensor:
        """A fake tensor like that type, of that shape."""
        with torch._C.DisableTorchFunction(), self.mode:
            return torch.empty(shape, dtype=dtype_called(type_.dtype), device=type_.device)


def _prime_pairs(start: int, taken: set[int]) -> Iterator[SizePair]:
    """Pairs of primes, each with a distance of its own: twice a prime that is not `taken` yet.

    So no pair is another one plus a constant, or a multiple of it plus a constant.
    """
    for first in filter(_is_prime, count(start)):
        if first in taken:
            continue
        halves = (half for half in count(3) if half not in taken and _is_prime(half))
        half = next(half for half in halves if _is_prime(first + 2 * half))
        taken |= {half, first + 2 * half}
        yield first, first + 2 * half


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))
