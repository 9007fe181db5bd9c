"""Small loops over scalars and small tensors, for every way to run them: native code, Triton's text
in Python, Triton on a GPU.

A program is made anew for each way, as a function keeps what it was first run with.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import penstock as ps
from penstock.errors import DivisionByZeroError
from penstock.ir.graph import Block
from penstock.run.native.choice import is_closed_loop, native_loops


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def is_native(function: Any, *arguments: Any) -> bool:
    """Whether some loop of the program runs as native code."""
    operations = [node.operation for node in function.graph(*arguments).nodes]
    return any(isinstance(each, Block) and is_closed_loop(each) for each in operations)


# ---- programs that give the same in every way ----------------------------------------------------


def relaxation(rate):
    @ps.function
    def relax(x, target):
        while (target - x).abs() > 1e-3:
            x = x + rate * torch.sin(target - x)
        return x

    return relax


def loop_after_a_branch():
    @ps.function
    def program(x, y, n):
        for i in range(n):
            j = 0
            while j < i:
                if x > y:
                    x = torch.sin(x * y) + 0.1 * i
                else:
                    y = y - x * 0.3
                k = 0
                while k < j:
                    y = torch.tanh(y + 0.2 * x)
                    k += 1
                j += 1
            x = x + 0.5 * y
        return x

    return program


def loop_in_a_branch(weight):
    @ps.function
    def program(x, y, n):
        for i in range(n):
            j = 0
            while j < i:
                if x > y:
                    k = 0
                    while k < j:
                        y = torch.tanh(y + 0.2 * x)
                        k += 1
                    x = torch.sin(x * y) + 0.1 * i
                else:
                    y = y - (x * weight if x < 0 else x * y)
                j += 1
            x = x + 0.5 * y
        return x

    return program


def branch_that_is_hardly_taken():
    @ps.function
    def program(x, n):
        root = torch.sqrt(x)
        total = x * 3
        i = 0
        while i < n:
            total = total + (root if n > 1 else total)
            i += 1
        return total

    return program


def small_tensors(weight):
    @ps.function
    def program(x, y):
        while x.abs().max() > 0.5:
            x = x * 0.8 - weight * x.sum() * 0.1
            y = x * 2
        return x, y.sum()

    return program


def bounded():
    @ps.function
    def program(x):
        return ps.while_loop(lambda x: x < 100, lambda x: x * 1.5 + 1, x, maximum_iterations=4)

    return program


class Loop(NamedTuple):
    """A program of what it captures, and its columns."""

    make: Callable[..., Any]
    columns: tuple[Tensor, ...]
    captured: tuple[Tensor, ...] = ()


_ROWS = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
_NESTED = doubles(0.3, 1.2, -0.7, 0.9), doubles(0.5, -0.2, 0.4, 1.1), torch.tensor([0, 1, 3, 6])

LOOPS = {
    "trip counts of none, one and many": Loop(
        relaxation,
        (doubles(1.0, 1.0005, 0.0, -1.5, 1.0), doubles(1.0, 1.002, 1.0, 1.0, 1.0)),
        (doubles(0.4)[0],),
    ),
    "rows of very different length": Loop(
        relaxation,
        (doubles(1.0, 0.0, 0.999, -0.5), doubles(1.0, 1.0, 1.0, 1.0)),
        (doubles(0.02)[0],),
    ),
    "nested, a loop after a branch": Loop(loop_after_a_branch, _NESTED),
    "nested, a loop in a branch": Loop(loop_in_a_branch, _NESTED, (doubles(0.3)[0],)),
    "a branch that is hardly taken": Loop(
        branch_that_is_hardly_taken, (doubles(0.0, 0.0, 4.0), torch.tensor([0, 1, 2]))
    ),
    "small tensors that broadcast and reduce": Loop(
        small_tensors, (_ROWS * 0.8, _ROWS), (doubles(0.2, -0.3, 0.4),)
    ),
    "maximum iterations": Loop(bounded, (doubles(0.5, 99.0, 200.0),)),
}


def values_and_gradients(loop: Loop, device: str = "cpu") -> list[Tensor | None]:
    """Of a function that is made now; None where there is no gradient."""
    captured = [value.detach().to(device).requires_grad_() for value in loop.captured]
    given = [column.to(device, copy=True) for column in loop.columns]
    wanted = [column.requires_grad_() for column in given if column.is_floating_point()]
    program = loop.make(*captured)
    results = program.map(*given)
    flat = [part for row in results for part in (row if isinstance(row, tuple) else (row,))]
    weights = torch.linspace(0.3, 1.7, len(flat), dtype=torch.float64, device=device)
    total = sum(weight * result.double().sum() for weight, result in zip(weights, flat))
    grads = torch.autograd.grad(total, [*wanted, *captured], allow_unused=True)
    return [*flat, *grads]


def assert_same_as_interpreted(
    loop: Loop, way: Callable[[], AbstractContextManager[Any]] = nullcontext, device: str = "cpu"
) -> None:
    """The program gives the same where it runs natively inside `way` and in the machine."""
    with way():
        rows = [column[0].to(device) for column in loop.columns]
        assert is_native(loop.make(*(value.to(device) for value in loop.captured)), *rows)
        native = values_and_gradients(loop, device)
    with native_loops(False):
        plain = values_and_gradients(loop, device)
    for left, right in zip(native, plain, strict=True):
        assert (left is None) == (right is None)
        if right is not None:
            torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


def backward_one_by_one(device: str = "cpu") -> tuple[Tensor, Tensor]:
    """The gradient of losses that go backward one after the other, and of their sum."""
    program = relaxation(0.4)
    x, targets = doubles(0.2, 0.9, -0.4).to(device), doubles(1.0, 1.0, 0.7).to(device)
    x.requires_grad_()
    for loss in program.map(x, targets):
        loss.backward()
    (together,) = torch.autograd.grad(program.map(x, targets, out="stack").sum(), x)
    assert x.grad is not None
    return x.grad, together


# ---- programs that fail, and that do not end -----------------------------------------------------


def assert_the_first_division_by_zero_is_named(device: str = "cpu") -> None:
    """With its line; rows after it may fail, too."""

    @ps.function
    def program(n, d):
        while n > 0:
            n = n // d - 1  # the division
            d = d - 1
        return n

    columns = torch.tensor([1, 100, 3, 50]), torch.tensor([5, 1, 3, 1])
    with pytest.raises(DivisionByZeroError) as caught:
        program.map(*(column.to(device) for column in columns))
    message = str(caught.value)
    assert "instance  1" in message
    assert "loop_programs.py" in message
    assert "dividend  99" in message
    assert program.map(*(torch.tensor([n], device=device) for n in (8, 3)))[0] == -1


class _Interrupted(Exception):
    pass


@contextmanager
def _interrupted() -> Iterator[None]:
    """A signal handler raises, soon."""

    def handle(number, frame):
        raise _Interrupted

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(_Interrupted):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def assert_a_loop_without_end_can_be_interrupted(*, asks: bool, device: str = "cpu") -> None:
    """A handler of a signal runs during the loop, and what it raises ends it."""

    @ps.function
    def program(x, n):
        while n > 0:
            k = n
            while k > 0:
                k, x = k + 1 - 1, x * 0.5 + 1
        return x

    x = torch.ones(2, device=device, requires_grad=asks)
    n = torch.tensor([0, 1], device=device)
    program.map(x, n * 0)  # compiled before the clock runs
    with _interrupted():
        program.map(x, n)
    assert program.map(x, n * 0) == [1, 1]
