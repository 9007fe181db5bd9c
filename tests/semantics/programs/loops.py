"""Loops and how they nest: zero trips, inner counts, branches inside, loops that never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import penstock as ps
from tests.semantics.table import Case, Maker, table_program


@table_program(torch.int64, differentiable=False)
def collatz(make: Maker) -> Case:
    """Steps until a number reaches one; the state is a dict of whole numbers."""

    def plain(n: int) -> dict[str, Any]:
        state = {"n": n, "steps": 0, "highest": n}
        while state["n"] != 1:
            n = state["n"] // 2 if state["n"] % 2 == 0 else 3 * state["n"] + 1
            state = {"n": n, "steps": state["steps"] + 1, "highest": max(n, state["highest"])}
        return state

    @ps.function
    def traced(n: Any) -> dict[str, Any]:
        def body(state: Any) -> dict[str, Any]:
            n = ps.cond(state["n"] % 2 == 0, lambda: state["n"] // 2, lambda: 3 * state["n"] + 1)
            highest = ps.cond(n > state["highest"], lambda: n, lambda: state["highest"])
            return {"n": n, "steps": state["steps"] + 1, "highest": highest}

        return ps.while_loop(
            lambda state: state["n"] != 1, body, {"n": n, "steps": 0, "highest": n}
        )

    return Case(plain, traced, [(n,) for n in (1, 2, 3, 6, 7, 12, 9, 27)])


@table_program(torch.float32, torch.float64, torch.bfloat16, torch.int64, differentiable=False)
def zero_trip_loops(make: Maker) -> Case:
    """Loops that may not run at all, over 0-d, empty and other tensors of different shapes."""

    def plain(x: Tensor, n: int) -> Tensor:
        for _ in range(n):
            x = x + x
        return x

    @ps.function
    def traced(x: Tensor, n: Any) -> Tensor:
        _, result = ps.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x + x), (0, x))
        return result

    shapes = [(), (), (0,), (0,), (3,), (3,), (2, 0), (2, 3), (1,)]
    trips = [0, 3, 0, 2, 0, 4, 1, 2, 0]
    values = [
        make.integers(-5, 5, *shape) if make.dtype is torch.int64 else make.normal(*shape)
        for shape in shapes
    ]
    return Case(plain, traced, list(zip(values, trips, strict=True)))


@dataclass(frozen=True)
class Sums:
    """What the nested loops carry."""

    outer: Any
    inner_trips: Any
    total: Tensor


@table_program(torch.float64)
def nested_loops(make: Maker) -> Case:
    """The inner loop runs as often as the outer variable says; the state is a dataclass."""
    weight = make.weight("weight", 3, 3)

    def plain(n: int, x: Tensor) -> Sums:
        trips, total = 0, x
        for i in range(n):
            for _ in range(i):
                total = torch.sin(total @ weight)
                trips += 1
            total = total + x * i
        return Sums(n, trips, total)

    @ps.function
    def traced(n: Any, x: Tensor) -> Sums:
        def outer(state: Sums) -> Sums:
            _, trips, total = ps.while_loop(
                lambda j, trips, total: j < state.outer,
                lambda j, trips, total: (j + 1, trips + 1, torch.sin(total @ weight)),
                (0, state.inner_trips, state.total),
            )
            return Sums(state.outer + 1, trips, total + x * state.outer)

        return ps.while_loop(lambda state: state.outer < n, outer, Sums(0, 0, x))

    return Case(plain, traced, [(n, make.normal(3)) for n in (0, 1, 2, 4, 5, 3)])


@table_program(torch.float64)
def loop_on_an_untaken_branch(make: Maker) -> Case:
    """A loop that would never end, on a branch that is only taken where it does."""
    weight = make.weight("weight", 2, 2, scale=0.3)

    def plain(ends: bool, x: Tensor) -> Tensor:
        if ends:
            while x.abs().max() > 0.1:
                x = torch.tanh(x @ weight) * 0.5
        return x * 2

    @ps.function
    def traced(ends: Any, x: Tensor) -> Tensor:
        def loop() -> Tensor:
            return ps.while_loop(
                lambda x: x.abs().max() > 0.1, lambda x: torch.tanh(x @ weight) * 0.5, x
            )

        return ps.cond(ends, loop, lambda: x) * 2

    flags = (True, False, True, False, True, True)
    return Case(plain, traced, [(flag, make.normal(2, scale=3.0)) for flag in flags])


@table_program(torch.float32, torch.float64)
def branch_in_a_loop(make: Maker) -> Case:
    """Each iteration takes one of two branches, by a flag of the instance."""
    left, right = make.weight("left", 3, 3), make.weight("right", 3, 3)

    def plain(flags: Tensor, x: Tensor) -> Tensor:
        for flag in flags:
            x = torch.tanh(x @ left) if flag else x - torch.sin(x @ right)
        return x

    @ps.function
    def traced(flags: Tensor, x: Tensor) -> Tensor:
        def body(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            x = ps.cond(flags[i], lambda: torch.tanh(x @ left), lambda: x - torch.sin(x @ right))
            return i + 1, x

        return ps.while_loop(lambda i, x: i < flags.shape[0], body, [0, x])[1]

    return Case(plain, traced, [(make.flags(n), make.normal(3)) for n in (3, 0, 5, 1, 5, 2, 7)])


@table_program(torch.bool, differentiable=False)
def cellular_automaton(make: Maker) -> Case:
    """Rows of bools of different lengths, none at all among them, each with its own steps."""

    def step(cells: Tensor) -> Tensor:
        left, right = torch.roll(cells, 1), torch.roll(cells, -1)
        return left ^ (cells | right)

    def plain(cells: Tensor, steps: int) -> Tensor:
        for _ in range(steps):
            cells = step(cells)
        return cells

    @ps.function
    def traced(cells: Tensor, steps: Any) -> Tensor:
        return ps.while_loop(
            lambda i, cells: i < steps, lambda i, cells: (i + 1, step(cells)), (0, cells)
        )[1]

    sizes = [(5, 3), (5, 0), (0, 2), (8, 6), (1, 1), (8, 2)]
    return Case(plain, traced, [(make.flags(size), steps) for size, steps in sizes])


@table_program(torch.float32, torch.float64, torch.bfloat16, differentiable=False)
def running_statistics(make: Maker) -> Case:
    """One loop carries a bool, a whole number and a float side by side."""

    def plain(x: Tensor) -> tuple[Any, Any, Tensor]:
        negative, count, highest = False, 0, x.new_full((), -10.0)
        for value in x:
            negative = negative or bool(value < 0)
            count += int(value > 0.5)
            highest = torch.maximum(highest, value)
        return negative, count, highest

    @ps.function
    def traced(x: Tensor) -> tuple[Any, Any, Tensor]:
        def body(i: Any, negative: Any, count: Any, highest: Tensor) -> tuple[Any, ...]:
            value = x[i]
            count = count + (value > 0.5).to(torch.int64)
            return i + 1, negative | (value < 0), count, torch.maximum(highest, value)

        start = (0, False, 0, x.new_full((), -10.0))
        return ps.while_loop(lambda i, *_: i < x.shape[0], body, start)[1:]

    return Case(plain, traced, [(make.normal(n).abs() - 0.1,) for n in (0, 1, 4, 7, 4, 2)])


@table_program(torch.float64)
def matrix_power(make: Maker) -> Case:
    """Matrices of different sizes, each raised to its own power: one group per shape."""

    def plain(x: Tensor, identity: Tensor, n: int) -> Tensor:
        result = identity
        while n > 0:
            if n % 2 == 1:
                result = result @ x
            x, n = x @ x, n // 2
        return result

    @ps.function
    def traced(x: Tensor, identity: Tensor, n: Any) -> Tensor:
        def body(x: Tensor, result: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            result = ps.cond(n % 2 == 1, lambda: result @ x, lambda: result)
            return x @ x, result, n // 2

        return ps.while_loop(lambda x, result, n: n > 0, body, (x, identity, n))[1]

    sizes = [(1, 3), (2, 5), (3, 0), (2, 1), (3, 6), (2, 4)]
    instances = [
        (make.normal(n, n, scale=0.6), make.tensor(torch.eye(n).tolist()), power)
        for n, power in sizes
    ]
    return Case(plain, traced, instances)
