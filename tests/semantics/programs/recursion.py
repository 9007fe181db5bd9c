"""Recursion over numbers: mutual, doubly nested, as deep as the data says, and inside a loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import penstock as ps
from tests.semantics.table import Case, Maker, table_program


@table_program(torch.float32, torch.float64)
def mutual_recursion(make: Maker) -> Case:
    """Two functions that call each other, each with its own weights."""
    even_weight, odd_weight = make.weight("even", 3, 3), make.weight("odd", 3, 3)

    def plain_even(n: Any, x: Tensor) -> tuple[Any, Tensor]:
        return (True, x) if n == 0 else plain_odd(n - 1, torch.tanh(x @ even_weight))

    def plain_odd(n: Any, x: Tensor) -> tuple[Any, Tensor]:
        return (False, x) if n == 0 else plain_even(n - 1, torch.sin(x @ odd_weight))

    @ps.function
    def even(n: Any, x: Tensor) -> tuple[Any, Tensor]:
        return ps.cond(n == 0, lambda: (True, x), lambda: odd(n - 1, torch.tanh(x @ even_weight)))

    @ps.function
    def odd(n: Any, x: Tensor) -> tuple[Any, Tensor]:
        return ps.cond(n == 0, lambda: (False, x), lambda: even(n - 1, torch.sin(x @ odd_weight)))

    return Case(plain_even, even, [(n, make.normal(3)) for n in (0, 1, 2, 5, 5, 8)])


@table_program(torch.int64, differentiable=False)
def ackermann(make: Maker) -> Case:
    """Doubly nested recursion: the argument of a call is a call."""

    def plain(m: Any, n: Any) -> Any:
        if m == 0:
            return n + 1
        return plain(m - 1, 1) if n == 0 else plain(m - 1, plain(m, n - 1))

    @ps.function
    def traced(m: Any, n: Any) -> Any:
        def inner() -> Any:
            return ps.cond(
                n == 0, lambda: traced(m - 1, 1), lambda: traced(m - 1, traced(m, n - 1))
            )

        return ps.cond(m == 0, lambda: n + 1, inner)

    return Case(plain, traced, [(0, 0), (0, 4), (1, 0), (1, 3), (2, 0), (2, 2), (2, 3)])


@table_program()
def data_dependent_depth(make: Maker) -> Case:
    """A value is split in two parts until each is small: only the data knows how deep."""
    weight = make.weight("weight", 3, 3)
    shrink = make.weight("shrink", 3, scale=0.1)

    def combine(left: Tensor, right: Tensor) -> Tensor:
        return torch.tanh(left @ weight) + right

    def plain(x: Tensor) -> Tensor:
        if x.square().sum() < 1:
            return torch.sin(x)
        return combine(plain(x * (0.7 - shrink)), plain(x * (0.4 + shrink)))

    @ps.function
    def traced(x: Tensor) -> Tensor:
        return ps.cond(
            x.square().sum() < 1,
            lambda: torch.sin(x),
            lambda: combine(traced(x * (0.7 - shrink)), traced(x * (0.4 + shrink))),
        )

    scales = (0.1, 0.9, 1.5, 2.0, 3.0, 3.0)
    return Case(plain, traced, [(make.normal(3, scale=scale),) for scale in scales])


@table_program(torch.float64)
def recursion_in_loop(make: Maker) -> Case:
    """A loop over a sequence of numbers whose body calls a recursive function."""
    weight = make.weight("weight", 2, 2)

    def plain_fibonacci(n: Any, x: Tensor) -> Tensor:
        if n < 2:
            return x
        return plain_fibonacci(n - 1, torch.tanh(x @ weight)) + plain_fibonacci(n - 2, x)

    def plain(ns: Tensor, x: Tensor) -> Tensor:
        for n in ns:
            x = x + plain_fibonacci(n, x) / 4
        return x

    @ps.function
    def fibonacci(n: Any, x: Tensor) -> Tensor:
        return ps.cond(
            n < 2,
            lambda: x,
            lambda: fibonacci(n - 1, torch.tanh(x @ weight)) + fibonacci(n - 2, x),
        )

    @ps.function
    def traced(ns: Tensor, x: Tensor) -> Tensor:
        _, result = ps.while_loop(
            lambda i, x: i < ns.shape[0],
            lambda i, x: (i + 1, x + fibonacci(ns[i], x) / 4),
            (0, x),
        )
        return result

    lengths = (1, 0, 3, 2, 4, 2)
    return Case(plain, traced, [(make.integers(0, 6, n), make.normal(2)) for n in lengths])


@table_program(torch.float64)
def recursion_over_a_tuple_of_results(make: Maker) -> Case:
    """Divide and conquer over a sequence: minimum, sum and a weighted sum of every range."""
    weight = make.weight("weight")

    def join(left: Any, right: Any) -> tuple[Tensor, dict[str, Tensor]]:
        low = torch.minimum(left[0], right[0])
        sums = {key: left[1][key] + right[1][key] * weight for key in ("once", "twice")}
        return low, sums

    def plain(x: Tensor, start: Any, stop: Any) -> tuple[Tensor, dict[str, Tensor]]:
        if stop - start == 1:
            return x[start], {"once": x[start] * weight, "twice": x[start] * 2}
        middle = (start + stop) // 2
        return join(plain(x, start, middle), plain(x, middle, stop))

    @ps.function
    def traced(x: Tensor, start: Any, stop: Any) -> tuple[Tensor, dict[str, Tensor]]:
        middle = (start + stop) // 2
        return ps.cond(
            stop - start == 1,
            lambda: (x[start], {"once": x[start] * weight, "twice": x[start] * 2}),
            lambda: join(traced(x, start, middle), traced(x, middle, stop)),
        )

    return Case(plain, traced, [(make.normal(n), 0, n) for n in (1, 2, 3, 7, 8, 5)])


@table_program(torch.float64)
def two_calls_that_end_together(make: Maker) -> Case:
    """Two calls of one function whose rows may end in one event, and their caller's with them."""
    weight = make.weight("weight", 3)

    def scale(x: Tensor) -> Tensor:
        return weight * x * 0.5

    scaled = ps.function(scale)

    def plain(x: Tensor) -> tuple[Tensor, Tensor]:
        return scale(x), scale(x + 1)

    @ps.function
    def traced(x: Tensor) -> tuple[Tensor, Tensor]:
        return scaled(x), scaled(x + 1)

    return Case(plain, traced, [(make.normal(),) for _ in range(6)])
