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

    return Placed(chain, weights, list(zip(_rows(5), [0, 3, 2, 5, 1], strict=True)))


def branch_on_another_device() -> Placed:
    first, second = weights = _square()

    @ps.function
    def choose(x, n):
        with ps.device("cpu:0"):
            y = torch.tanh(x @ first)

        def away():
            with ps.device("cpu:1"):
                return torch.sin(y @ second)

        return ps.cond(n > 1, away, lambda: y * 2)

    return Placed(choose, weights, list(zip(_rows(4), [0, 3, 2, 1], strict=True)))


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

    return Placed(start, weights, list(zip(_rows(4), [0, 3, 2, 1], strict=True)))


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

    return Placed(nest, weights, list(zip(_rows(4), [0, 3, 2, 1], strict=True)))


def loop_on_an_untaken_branch() -> Placed:
    first, second = weights = _square()

    @ps.function
    def choose(x, n):
        with ps.device("cpu:0"):
            y = torch.tanh(x @ first)

        def away():
            with ps.device("cpu:1"):
                step = lambda i, x: (i + 1, torch.sin(x @ second))  # noqa: E731
                return ps.while_loop(lambda i, x: i < n, step, (0, y))[1]

        return ps.cond(n > 100, away, lambda: y * 2)

    return Placed(choose, weights, list(zip(_rows(3), [0, 3, 2], strict=True)))


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

    return Placed(nothing, weights, list(zip(_rows(3), [0, 0, 0], strict=True)))


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

    return Placed(settle, weights, list(zip(_rows(4), [9, 1, 0, 4], strict=True)))


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
