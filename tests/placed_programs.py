"""Programs that users have placed on two devices, one for each way in which an edge can be cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import penstock as ps

WIDTH = 3


@dataclass(frozen=True)
class Placed:
    """A program with weights and the arguments of each instance."""

    function: Any
    weights: list[Tensor]
    instances: list[tuple[Any, ...]]

    @property
    def columns(self) -> list[list[Any]]:
        return [list(column) for column in zip(*self.instances, strict=True)]

    @property
    def tensors(self) -> list[Tensor]:
        """What gradients are asked for."""
        values = [value for instance in self.instances for value in instance]
        return [*self.weights, *(value for value in values if isinstance(value, Tensor))]


def _values(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [values.requires_grad_() for values in made]


def _rows(count: int) -> list[Tensor]:
    return _values(*[(WIDTH,)] * count, seed=1)


def _square(count: int = 2) -> list[Tensor]:
    return _values(*[(WIDTH, WIDTH)] * count)


def _placed(function: Any, weights: list[Tensor], numbers: list[int]) -> Placed:
    """A program of a row and a number, for these numbers."""
    return Placed(function, weights, list(zip(_rows(len(numbers)), numbers, strict=True)))


def _branching(most: int, away: Callable[[Tensor, Tensor, Any], Tensor]) -> Any:
    """A branch that goes away to another device for numbers above `most`."""
    first, second = weights = _square()

    @ps.function
    def choose(x, n):
        with ps.device("cpu:0"):
            y = torch.tanh(x @ first)

        def elsewhere():
            with ps.device("cpu:1"):
                return away(y, second, n)

        return ps.cond(n > most, elsewhere, lambda: y * 2)

    return choose, weights


def loop_across_devices() -> Placed:
    first, second = weights = _square()

    @ps.function
    def chain(x, n):
        def body(i, a, b):
            with ps.device("cpu:0"):
                a = torch.tanh(a @ first)
            with ps.device("cpu:1"):
                b = torch.tanh(b @ second + a)
            return i + 1, a, b

        return ps.while_loop(lambda i, a, b: i < n, body, (0, x, torch.sin(x)))[2]

    return _placed(chain, weights, [0, 3, 2, 5, 1])


def branch_on_another_device() -> Placed:
    choose, weights = _branching(1, lambda y, second, n: torch.sin(y @ second))
    return _placed(choose, weights, [0, 3, 2, 1])


def recursion_on_another_device() -> Placed:
    first, second = weights = _square()

    @ps.function
    def descend(x, n):
        if n > 0:
            with ps.device("cpu:1"):
                return torch.tanh(descend(x @ second, n - 1))
        return torch.sin(x @ first)

    @ps.function
    def start(x, n):
        with ps.device("cpu:0"):
            y = torch.cos(x)
            return torch.exp(descend(y, n) @ first)

    return _placed(start, weights, [0, 3, 2, 1])


def nested_loops_cut_in_the_middle() -> Placed:
    first, second = weights = _square()

    @ps.function
    def nest(x, n):
        def inner(j, k, x):
            with ps.device("cpu:0"):
                x = torch.tanh(x @ first)
            with ps.device("cpu:1"):
                return j + 1, k, torch.sin(x @ second)

        def outer(i, x):
            with ps.device("cpu:1"):
                x = torch.cos(x)
            x = ps.while_loop(lambda j, k, x: j < k, inner, (0, i, x))[2]
            with ps.device("cpu:0"):
                return i + 1, x + 1

        return ps.while_loop(lambda i, x: i < n, outer, (0, x))[1]

    return _placed(nest, weights, [0, 3, 2, 1])


def loop_on_an_untaken_branch() -> Placed:
    def repeat(y, second, n):
        step = lambda i, x: (i + 1, torch.sin(x @ second))  # noqa: E731
        return ps.while_loop(lambda i, x: i < n, step, (0, y))[1]

    choose, weights = _branching(100, repeat)
    return _placed(choose, weights, [0, 3, 2])


def remote_loop_without_iterations() -> Placed:
    first, second = weights = _square()

    @ps.function
    def nothing(x, n):
        with ps.device("cpu:0"):
            y = torch.tanh(x @ first)
        with ps.device("cpu:1"):
            y = ps.while_loop(
                lambda i, y: i < n, lambda i, y: (i + 1, torch.sin(y @ second)), (0, y)
            )[1]
        with ps.device("cpu:0"):
            return torch.cos(y)

    return _placed(nothing, weights, [0, 0, 0])


def loop_until_a_value_computed_elsewhere() -> Placed:
    first, second = weights = [weight.detach().mul(0.3).requires_grad_() for weight in _square()]

    @ps.function
    def settle(x, most):
        def goes_on(i, x):
            with ps.device("cpu:1"):
                return ((x @ second).norm() > 0.05) & (i < most)

        def body(i, x):
            with ps.device("cpu:0"):
                return i + 1, x @ first

        return ps.while_loop(goes_on, body, (0, x))[1]

    return _placed(settle, weights, [9, 1, 0, 4])


def arrays_across_devices() -> Placed:
    first, second = weights = _square()

    @ps.function
    def collect(xs):
        with ps.device("cpu:0"):
            ys = ps.map_fn(lambda x: torch.tanh(x @ first), xs)

        def step(total, y):
            with ps.device("cpu:1"):
                total = torch.sin(total @ second + y)
            with ps.device("cpu:0"):
                return total, torch.cos(total)

        total, made = ps.scan(step, torch.zeros(WIDTH, dtype=torch.float64), ys)
        with ps.device("cpu:1"):
            return total, made.sum(0)

    lengths = [4, 1, 6]
    xs = _values(*[(length, WIDTH) for length in lengths], seed=1)
    return Placed(collect, weights, [(x,) for x in xs])


PLACED: dict[str, Callable[[], Placed]] = {
    made.__name__: made
    for made in (
        loop_across_devices,
        branch_on_another_device,
        recursion_on_another_device,
        nested_loops_cut_in_the_middle,
        loop_on_an_untaken_branch,
        remote_loop_without_iterations,
        loop_until_a_value_computed_elsewhere,
        arrays_across_devices,
    )
}
