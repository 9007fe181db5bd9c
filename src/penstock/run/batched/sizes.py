"""Sizes as polynomials in the number of rows and in the dynamic dimensions, and how to find them.

The same code is traced at several points (a point gives each symbol a size). An integer that is the
same at every point stays an integer; one that differs must be a product of symbols times an affine
form of them, exactly, at all points. Anything else (a halved size, a minimum) has no such form and
`fit` says so by returning None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

#: The symbol of the batch dimension. Names of dynamic dimensions must differ from it.
ROWS = "N"

Point = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A sum of terms; kept sorted, without zero coefficients, so that equal sizes compare equal."""

    #: (symbols in sorted order, coefficient); no term is constant alone, see `simplified`.
    terms: tuple[tuple[tuple[str, ...], int], ...]

    def at(self, point: Point) -> int:
        """The size at one point."""
        return sum(c * math.prod(point[name] for name in names) for names, c in self.terms)

    def __str__(self) -> str:
        return " + ".join(_term_text(names, coefficient) for names, coefficient in self.terms)


Size = int | Polynomial


def symbol(name: str) -> Polynomial:
    """The size that is one symbol."""
    return Polynomial((((name,), 1),))


def add(*sizes: Size) -> Size:
    """The sum of sizes."""
    return _simplified(term for size in sizes for term in _terms(size))


def multiply(*sizes: Size) -> Size:
    """The product of sizes; 1 for none, as the number of elements of a 0-d tensor."""
    total: Size = 1
    for size in sizes:
        total = _simplified(
            (tuple(sorted(left + right)), a * b)
            for left, a in _terms(total)
            for right, b in _terms(size)
        )
    return total


def at(size: Size, point: Point) -> int:
    """The value of a size at one point."""
    return size.at(point) if isinstance(size, Polynomial) else size


def fit(values: Sequence[int], points: Sequence[Point]) -> Size | None:
    """The size that takes these values at these points, or None.

    `points[0]` is the base; then one point for each symbol, in the order of the base's keys, where
    only that symbol differs; any further points only verify.
    """
    if all(value == values[0] for value in values):
        return values[0]
    quotients = list(_quotients(values, points))
    constant = (_constant_quotient(monomial, q) for monomial, q in quotients)
    affine = (_affine_quotient(monomial, q, points) for monomial, q in quotients)
    return next((size for size in (*constant, *affine) if size is not None), None)


def _quotients(
    values: Sequence[int], points: Sequence[Point]
) -> Iterator[tuple[tuple[str, ...], list[int]]]:
    """Every product of symbols (each at most squared) that divides the values at all points, by
    degree.
    """
    names = list(points[0])
    for powers in sorted(product(range(3), repeat=len(names)), key=sum):
        monomial = tuple(
            name for name, power in zip(names, powers, strict=True) for _ in range(power)
        )
        divisors = [math.prod(point[name] for name in monomial) for point in points]
        if all(d and value % d == 0 for value, d in zip(values, divisors, strict=True)):
            yield monomial, [value // d for value, d in zip(values, divisors, strict=True)]


def _constant_quotient(monomial: tuple[str, ...], quotients: list[int]) -> Size | None:
    if any(quotient != quotients[0] for quotient in quotients):
        return None
    return multiply(quotients[0], *map(symbol, monomial))


def _affine_quotient(
    monomial: tuple[str, ...], quotients: list[int], points: Sequence[Point]
) -> Size | None:
    base = points[0]
    form: Size = quotients[0]
    for position, name in enumerate(base, start=1):
        step = points[position][name] - base[name]
        slope, rest = divmod(quotients[position] - quotients[0], step)
        if rest:
            return None
        form = add(form, multiply(slope, symbol(name)), -slope * base[name])
    if any(at(form, point) != q for point, q in zip(points, quotients, strict=True)):
        return None
    return multiply(form, *map(symbol, monomial))


def _terms(size: Size) -> tuple[tuple[tuple[str, ...], int], ...]:
    return size.terms if isinstance(size, Polynomial) else (((), size),)


def _simplified(terms: Iterable[tuple[tuple[str, ...], int]]) -> Size:
    sums: dict[tuple[str, ...], int] = {}
    for names, coefficient in terms:
        sums[names] = sums.get(names, 0) + coefficient
    kept = tuple(sorted((names, c) for names, c in sums.items() if c))
    if not kept:
        return 0
    if len(kept) == 1 and kept[0][0] == ():
        return kept[0][1]
    return Polynomial(kept)


def _term_text(names: tuple[str, ...], coefficient: int) -> str:
    if not names:
        return str(coefficient)
    factors = list(names) if coefficient == 1 else [str(coefficient), *names]
    return " * ".join(factors)
