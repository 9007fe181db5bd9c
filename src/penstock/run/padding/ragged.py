"""Values of one instance whose dynamic dimensions are padded, and what is known of their padding.

A dimension is a product of factors, the outermost first; a factor that is a polynomial of the sizes
is padded at its end: of its entries, as many are valid as the polynomial gives for the instance's
own lengths. Two things hold for every value, and all rules rely on them: where `is_finite`, padding
holds finite numbers at which the operation that made them has a finite derivative; and a zero
cotangent in the padding of a result stays zero in the padding of its operands, or meets a fill,
which makes it zero. So what is summed or contracted over padding, forward or backward, needs zeros
on one side only. (A row whose own numbers are infinite may spoil its own padding, and only that.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from penstock.run.batched.sizes import Point, Polynomial, Size, at, multiply

#: The factors of one dimension.
Factors = tuple[Size, ...]


class Unpaddable(Exception):
    """A block has no padded form; `operation` is what stands in the way."""

    def __init__(self, operation: str, reason: str) -> None:
        super().__init__(f"{operation} {reason}")
        self.operation = operation


@dataclass(frozen=True, slots=True)
class Ragged:
    """A tensor with padded dimensions."""

    tensor: torch.Tensor
    dims: tuple[Factors, ...]
    #: Padded dimensions whose padding is exactly zero.
    zero: frozenset[int] = frozenset()
    is_finite: bool = True

    @property
    def padded(self) -> tuple[int, ...]:
        """The dimensions that have padding."""
        return tuple(k for k, factors in enumerate(self.dims) if is_padded(factors))

    def with_tensor(self, tensor: torch.Tensor) -> Ragged:
        """The same, with other numbers of the same kind."""
        return replace(self, tensor=tensor)


def is_padded(factors: Factors) -> bool:
    """Whether a dimension has padding."""
    return any(isinstance(factor, Polynomial) for factor in factors)


def plain(factors: Factors) -> Factors:
    """The factors without ones, numbers side by side multiplied."""
    joined: list[Size] = []
    for factor in factors:
        if factor == 1:
            continue
        if joined and isinstance(factor, int) and isinstance(joined[-1], int):
            joined[-1] *= factor
        else:
            joined.append(factor)
    return tuple(joined)


class Frame:
    """The sizes and lengths of one instance, and the masks that follow from them."""

    def __init__(self, sizes: Point, lengths: Mapping[str, torch.Tensor]) -> None:
        #: The padded size of each symbol, and the instance's own.
        self.sizes = sizes
        self.lengths = lengths
        #: Sizes that must not be 0: an operation has no answer for no entries.
        self.needed: set[Polynomial] = set()
        self._masks: dict[tuple[Factors, torch.device], torch.Tensor] = {}
        #: What was filled, kept so that its identity stays its own, and the result.
        self._fills: dict[tuple[object, ...], tuple[torch.Tensor, Ragged]] = {}

    def size(self, size: Size) -> int:
        """A size with padding."""
        return at(size, self.sizes)

    def length(self, size: Size, device: torch.device | None = None) -> torch.Tensor | int:
        """A size without padding: a 0-d int64 tensor where it differs from row to row."""
        if not isinstance(size, Polynomial):
            return size
        terms = [self._term(names, coefficient) for names, coefficient in size.terms]
        total = sum(terms[1:], start=terms[0])
        assert isinstance(total, torch.Tensor)
        return total if device is None else total.to(device)

    def _term(self, names: Sequence[str], coefficient: int) -> torch.Tensor | int:
        term: torch.Tensor | int = coefficient
        for name in names:
            term = (
                self.lengths[name]
                if isinstance(term, int) and term == 1
                else self.lengths[name] * term
            )
        return term

    def need_entries(self, factors: Factors) -> None:
        """Only instances that have entries along a dimension can be padded."""
        self.needed.update(factor for factor in factors if isinstance(factor, Polynomial))

    def positions(self, size: Size, device: torch.device) -> torch.Tensor:
        """The numbers of the entries of a dimension, padding included."""
        return torch.arange(self.size(size), device=device)

    def mask(self, factors: Factors, device: torch.device) -> torch.Tensor:
        """Which entries of a dimension are valid, [its size]."""
        key = (factors, device)
        if key not in self._masks:
            parts = [self._factor_mask(factor, device) for factor in factors]
            whole = parts[0]
            for part in parts[1:]:
                whole = (whole.unsqueeze(-1) & part).reshape(-1)
            self._masks[key] = whole
        return self._masks[key]

    def _factor_mask(self, factor: Size, device: torch.device) -> torch.Tensor:
        if isinstance(factor, Polynomial):
            return self.positions(factor, device) < self.length(factor, device)
        return torch.ones(factor, dtype=torch.bool, device=device)

    def mask_of(self, value: Ragged, dims: Iterable[int]) -> torch.Tensor:
        """Which entries are valid along some dimensions, in a shape that broadcasts to the
        value's.
        """
        rank = len(value.dims)
        whole: torch.Tensor | None = None
        for dim in dims:
            part = self.mask(value.dims[dim], value.tensor.device)
            part = part.reshape([-1 if k == dim else 1 for k in range(rank)])
            whole = part if whole is None else whole & part
        assert whole is not None
        return whole

    def fill(self, value: Ragged, dims: Sequence[int], constant: float) -> Ragged:
        """The value with a constant in the padding of some dimensions."""
        dims = [dim for dim in dims if is_padded(value.dims[dim])]
        if constant == 0:
            dims = [dim for dim in dims if dim not in value.zero]
        if not dims:
            return value
        key = (id(value.tensor), tuple(dims), constant)
        if key not in self._fills:
            mask = self.mask_of(value, dims)
            filled = torch.where(mask, value.tensor, _scalar(constant, value.tensor))
            zero = value.zero | set(dims) if constant == 0 else frozenset()
            covers = set(value.padded) <= set(dims)
            is_finite = abs(constant) < float("inf") and (value.is_finite or covers)
            made = Ragged(filled, value.dims, frozenset(zero), is_finite)
            self._fills[key] = value.tensor, made
        return self._fills[key][1]

    def finite(self, value: Ragged) -> Ragged:
        """The value with finite padding."""
        return value if value.is_finite or not value.padded else self.fill_all(value, 0)

    def fill_all(self, value: Ragged, constant: float) -> Ragged:
        """The value with a constant in all its padding."""
        return self.fill(value, value.padded, constant)


def _scalar(constant: float, like: torch.Tensor) -> torch.Tensor:
    return torch.full((), constant, dtype=like.dtype, device=like.device)


def product(factors: Factors) -> Size:
    """The size of a dimension."""
    return multiply(*factors)


def least_of(dtype: torch.dtype) -> float:
    """A number that no maximum takes."""
    if dtype == torch.bool:
        return 0
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def greatest_of(dtype: torch.dtype) -> float:
    """A number that no minimum takes."""
    if dtype == torch.bool:
        return 1
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max


def with_defaults(args: Sequence[Any], *defaults: Any) -> list[Any]:
    """Arguments, and behind them what those stand for that were left out."""
    return [*args, *defaults[len(args) :]]
