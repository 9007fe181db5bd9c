"""After an error or an interrupt the library is as it was: the next call works, nothing is left."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

import penstock as ps
from penstock.api.traces import Traces
from penstock.capture.active import active_tracer
from penstock.errors import PenstockError
from penstock.plan.machine import Machine
from penstock.run.blocks import RunnableBlock
from penstock.run.engine import Run


def make_program() -> Any:
    """A fresh function with data, control, a loop and a recursion."""

    @ps.function
    def program(x, n):
        def body(i, y):
            return i + 1, torch.tanh(y) * 2

        _, y = ps.while_loop(lambda i, y: i < n, body, (0, x))
        array = ps.TensorArray(2).write(0, y)
        return ps.cond(n > 3, lambda: program(x + 1, n - 1), lambda: array.read(n * 0))

    return program


x = torch.tensor([0.5, -0.5])


def expected(n: int) -> torch.Tensor:
    with ps.set_eager(True):
        result: torch.Tensor = make_program()(x, n)
    return result


def interrupted(*args: Any, **kwargs: Any) -> Any:
    raise KeyboardInterrupt


INTERRUPTED = [
    (Run, "_launch"),
    (Run, "_carry_out"),
    (RunnableBlock, "function"),
    (RunnableBlock, "form"),
    (Machine, "deliver"),
    (Machine, "settle"),
    (Traces, "_trace"),
]


@pytest.mark.parametrize(("owner", "name"), INTERRUPTED)
@pytest.mark.parametrize("is_warm", [False, True], ids=["first call", "later call"])
def test_an_interrupt_leaves_the_function_usable(monkeypatch, owner, name, is_warm) -> None:
    program = make_program()
    if is_warm:
        program.map([x, x], [5, 2])
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        try:
            program.map([x, x], [5, 2])
        except KeyboardInterrupt:
            pass
        else:
            assert is_warm  # what is kept from the first call is not made again
    five, two = program.map([x, x], [5, 2])
    torch.testing.assert_close(five, expected(5))
    torch.testing.assert_close(two, expected(2))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupt_while_tracing_leaves_no_tracer(error) -> None:
    is_broken = [True]

    @ps.function
    def program(x, n):
        if is_broken:
            raise error
        return ps.cond(n > 0, lambda: program(x * 2, n - 1), lambda: x)

    with pytest.raises(error):
        program(x, 2)
    assert active_tracer() is None
    is_broken.clear()
    torch.testing.assert_close(program(x, 2), x * 4)
    assert torch.is_grad_enabled()


def test_an_interrupt_while_planning_late_leaves_the_function_usable(monkeypatch) -> None:
    program = make_program()
    fire, left = Machine.fire, [12]

    def fire_a_few(self: Any, *args: Any, **kwargs: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        fire(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Machine, "fire", fire_a_few)
        with pytest.raises(KeyboardInterrupt):
            program(x, 5)
    torch.testing.assert_close(program(x, 5), expected(5))


def test_nothing_of_a_failed_call_stays_alive(monkeypatch) -> None:
    made: list[Any] = []
    start = Machine.__init__

    def remember(self: Any, *args: Any, **kwargs: Any) -> None:
        made.append(weakref.ref(self))
        start(self, *args, **kwargs)

    @ps.function
    def read(i, x):
        return ps.TensorArray(3).write(0, torch.tanh(x)).read(i)

    monkeypatch.setattr(Machine, "__init__", remember)
    with pytest.raises(PenstockError):
        read.map([0, 1], [x, x])
    gc.collect()
    assert [machine() for machine in made] == [None]
    first, second = read.map([0, 0], [x, x])
    torch.testing.assert_close(first, torch.tanh(x))
    torch.testing.assert_close(second, torch.tanh(x))


def test_a_failed_call_does_not_poison_the_call_after_it() -> None:
    embedding = torch.nn.Embedding(4, 2)

    @ps.function
    def embed(token):
        return embedding(token)

    with pytest.raises(IndexError):
        embed.map([0, 9])
    torch.testing.assert_close(embed.map([0, 3])[1], embedding.weight[3].detach())
    with pytest.raises(IndexError):
        embed.map([7, 0])
    torch.testing.assert_close(embed(2), embedding.weight[2].detach())
