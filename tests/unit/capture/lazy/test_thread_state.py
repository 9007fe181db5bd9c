"""Fibers keep what torch has per thread apart: one enters a context and waits, the other must not
see it, the first is still inside when it goes on, and afterwards the thread is as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils import _device, _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

import penstock as ps
from penstock.capture.active import state as tracing_state
from penstock.capture.lazy.fibers import Fibers, Wait
from penstock.capture.lazy.thread_state import read_companions, read_state
from penstock.errors import WaitError


def echo(waits: list[Wait]) -> None:
    for wait in waits:
        wait.answer = wait.request


@pytest.fixture(autouse=True)
def _thread_stays_clean() -> Iterator[None]:
    before = (read_state(), read_companions())
    yield
    assert (read_state(), read_companions()) == before


class Named(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def autocast_without_cache() -> Iterator[None]:
    with torch.autocast("cpu", torch.float16, cache_enabled=False):
        yield


def autocast_state() -> object:
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
    )


def hooks_state() -> object:
    top = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return (
        None if top is None else "hooks",
        torch._C._autograd._saved_tensors_hooks_get_disabled_error_message(),
    )


def saved_twice() -> object:
    """What a saved tensor goes through: hooks that double it on the way back."""
    x = torch.tensor(3.0, requires_grad=True)
    return torch.autograd.grad(x * x, x)[0].item()


CONTEXTS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[], object]]] = {
    "no_grad": (torch.no_grad, torch.is_grad_enabled),
    "inference_mode": (
        torch.inference_mode,
        lambda: (
            torch.is_inference_mode_enabled(),
            torch.is_grad_enabled(),
            torch.ones(1).is_inference(),
        ),
    ),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), autocast_state),
    "autocast without cache": (autocast_without_cache, autocast_state),
    "function mode": (
        Named,
        lambda: [type(mode) for mode in torch.overrides._get_current_function_mode_stack()],
    ),
    "dispatch mode": (
        Counting,
        lambda: (
            len(_python_dispatch._get_current_dispatch_mode_stack()),
            _python_dispatch.is_in_torch_dispatch_mode(),
        ),
    ),
    "device": (
        lambda: torch.device("meta"),
        lambda: (torch.empty(1).device.type, torch.get_default_device(), _device.CURRENT_DEVICE),
    ),
    "saved tensor hooks": (
        lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x * 2),
        lambda: (hooks_state(), saved_twice()),
    ),
    "save_on_cpu": (torch.autograd.graph.save_on_cpu, hooks_state),
    "disabled hooks": (
        lambda: torch.autograd.graph.disable_saved_tensors_hooks("not here"),
        hooks_state,
    ),
    "disabled torch function": (
        torch._C.DisableTorchFunctionSubclass,
        torch._C._is_torch_function_enabled,
    ),
    "all torch function disabled": (
        torch._C.DisableTorchFunction,
        torch._C._is_torch_function_all_disabled,
    ),
    "multithreading": (
        lambda: torch.autograd.set_multithreading_enabled(False),
        torch._C._is_multithreading_enabled,
    ),
    "dispatch keys": (
        torch._C._AutoDispatchBelowAutograd,
        lambda: (torch.ones(1, requires_grad=True) * 2).requires_grad,
    ),
    "plain Python": (lambda: ps.set_eager(True), lambda: tracing_state.eager),
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_context_is_seen_by_its_own_fiber_alone(name: str) -> None:
    make, look = CONTEXTS[name]
    outside = look()
    with make():
        inside = look()
    assert inside != outside
    fibers = Fibers(echo)
    seen: list[tuple[str, object]] = []

    def enters() -> None:
        with make():
            fibers.wait(0)
            seen.append(("inside", look()))
            fibers.wait(1)
            seen.append(("still inside", look()))
        seen.append(("left", look()))
        fibers.wait(2)

    def looks() -> None:
        for _ in range(4):
            seen.append(("other", look()))
            fibers.wait(0)

    fibers.run([enters, looks, enters])
    expected = {"inside": inside, "still inside": inside, "left": outside, "other": outside}
    assert [(place, expected[place]) for place, _ in seen] == seen
    assert look() == outside


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_context_around_the_fibers_holds_in_all_of_them(name: str) -> None:
    make, look = CONTEXTS[name]
    fibers = Fibers(echo)

    def looks() -> object:
        fibers.wait(0)
        with torch.no_grad():
            fibers.wait(1)
        return look()

    with make():
        inside = look()
        assert [outcome.value for outcome in fibers.run([looks] * 3)] == [inside] * 3
        assert look() == inside


@pytest.mark.parametrize("name", CONTEXTS)
def test_calls_made_inside_a_context_begin_inside_it(name: str) -> None:
    make, look = CONTEXTS[name]
    fibers = Fibers(echo)

    def looks() -> object:
        before = look()
        fibers.wait(0)
        return before, look()

    def enters() -> object:
        with make():
            found = [outcome.value for outcome in fibers.run([looks] * 2)]
            assert look() == found[0][0]
            return found

    outside = look()
    with make():
        inside = look()
    outer = fibers.run([enters, looks])
    assert outer[0].value == [(inside, inside)] * 2
    assert outer[1].value == (outside, outside)


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_fiber_that_is_stopped_leaves_its_context(name: str) -> None:
    make, look = CONTEXTS[name]
    fibers = Fibers(echo)
    outside = look()
    left: list[object] = []

    def enters() -> None:
        try:
            with make():
                fibers.wait(0)
        finally:
            left.append(look())

    def fails() -> None:
        fibers.wait(0)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fibers.run([fails, enters, enters])
    assert left == [outside, outside]
    assert look() == outside


def test_different_contexts_interleave() -> None:
    fibers = Fibers(echo)

    def fiber(make: Callable[[], AbstractContextManager[Any]], look: Callable[[], object]) -> bool:
        for _ in range(2):
            with make():
                inside = look()
                for turn in range(3):
                    fibers.wait(turn)
                    if look() != inside:
                        return False
            fibers.wait(0)
        return True

    calls = [lambda make=make, look=look: fiber(make, look) for make, look in CONTEXTS.values()]
    assert all(outcome.value for outcome in fibers.run(calls * 2))


def test_what_a_call_leaves_switched_does_not_reach_the_next() -> None:
    fibers = Fibers(echo)

    def switches() -> bool:
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        torch.set_default_device("meta")
        return before and torch.get_default_device().type == "meta"

    assert [outcome.value for outcome in fibers.run([switches] * 3)] == [True] * 3
    assert torch.is_grad_enabled()
    assert torch.get_default_device().type == "cpu"


def test_autocast_dtypes_of_two_fibers_do_not_share_cached_casts() -> None:
    fibers = Fibers(echo)
    linear = torch.nn.Linear(2, 2)
    row = torch.ones(1, 2)

    def casts(dtype: torch.dtype) -> torch.dtype:
        with torch.autocast("cpu", dtype):
            linear(row)
            fibers.wait(0)
            return linear(row).dtype

    outcomes = fibers.run([lambda: casts(torch.bfloat16), lambda: casts(torch.float16)])
    assert [outcome.value for outcome in outcomes] == [torch.bfloat16, torch.float16]


def test_waiting_inside_the_handler_of_a_function_mode() -> None:
    fibers = Fibers(echo)
    calls: list[tuple[int | None, int]] = []

    class Waiting(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            depth = torch._C._len_torch_function_stack()
            answer = fibers.wait(depth)
            calls.append((fibers.current, answer))
            assert torch._C._len_torch_function_stack() == depth
            return func(*args, **(kwargs or {}))

    def adds() -> int:
        x = torch.ones(1)
        with Named():
            x = x + 1
            x = x + 1
        return torch._C._len_torch_function_stack()

    with Waiting():
        outcomes = fibers.run([adds, adds])
        assert torch._C._len_torch_function_stack() == 1
    assert [outcome.value for outcome in outcomes] == [1, 1]
    assert [number for number, _ in calls[:4]] == [0, 1, 0, 1]


def test_waiting_inside_the_handler_of_a_dispatch_mode_raises() -> None:
    fibers = Fibers(echo)

    class Waiting(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            with pytest.raises(WaitError, match="inside a __torch_dispatch__ handler"):
                fibers.wait(0)
            return func(*args, **(kwargs or {}))

    def adds(mode: TorchDispatchMode) -> tuple[object, ...]:
        x = torch.ones(1, requires_grad=True)
        with mode, Counting() as counting:
            y = x * 2
            fibers.wait(0)
            y = y + 1
        return y.requires_grad, counting.count, torch._C._len_torch_dispatch_stack()

    before = _python_dispatch.is_in_torch_dispatch_mode()
    modes = [Waiting(), Waiting(), Counting()]
    outcomes = fibers.run([lambda mode=mode: adds(mode) for mode in modes])
    assert [outcome.value for outcome in outcomes] == [(True, 2, 0)] * 3
    assert _python_dispatch.is_in_torch_dispatch_mode() == before


@pytest.mark.parametrize(
    "transform",
    [
        lambda fn: torch.func.grad(fn)(torch.tensor(1.0)),
        lambda fn: torch.func.vmap(fn)(torch.ones(2)),
        lambda fn: torch.func.functionalize(fn)(torch.ones(2)),
    ],
    ids=["grad", "vmap", "functionalize"],
)
def test_waiting_inside_a_transform_of_torch_func_raises(transform: Callable[..., Any]) -> None:
    fibers = Fibers(echo)

    def waits(x: torch.Tensor) -> torch.Tensor:
        fibers.wait(0)
        return x * 2

    def caught() -> str:
        with pytest.raises(WaitError, match=r"inside a transform of torch\.func") as raised:
            transform(waits)
        fibers.wait(1)
        return str(raised.value)

    text = fibers.run([caught, caught])[1].value
    assert "at tests/unit/capture/lazy/test_thread_state.py:" in text
    assert "Read the value before" in text


def test_waiting_inside_a_dual_level_or_a_backward_pass_raises() -> None:
    fibers = Fibers(echo)

    def dual() -> None:
        with forward_ad.dual_level():
            fibers.wait(0)

    def backward() -> None:
        x = torch.ones(1, requires_grad=True)
        x.register_hook(lambda grad: fibers.wait(0))
        (x * 2).sum().backward()

    outcomes = fibers.run([dual, backward], on_error="return")
    assert "inside torch.autograd.forward_ad.dual_level" in str(outcomes[0].error)
    assert "inside a backward pass" in str(outcomes[1].error)


def test_fibers_inside_a_transform_can_wait() -> None:
    fibers = Fibers(echo)

    def doubled(x: torch.Tensor) -> torch.Tensor:
        outcomes = fibers.run([lambda: fibers.wait(2), lambda: fibers.wait(3)])
        return x * outcomes[0].value * outcomes[1].value

    assert torch.func.grad(doubled)(torch.tensor(1.0)).item() == 6.0


def test_each_fiber_has_a_copy_of_the_context() -> None:
    variable: ContextVar[int] = ContextVar("variable", default=0)
    variable.set(1)
    fibers = Fibers(echo)

    def sets(number: int) -> list[int]:
        seen = [variable.get()]
        variable.set(number)
        fibers.wait(0)
        return [*seen, variable.get()]

    def nests() -> list[Any]:
        variable.set(7)
        outcomes = fibers.run([lambda: sets(8), lambda: sets(9)])
        return [*[outcome.value for outcome in outcomes], variable.get()]

    outcomes = fibers.run([lambda: sets(5), lambda: sets(6), nests])
    assert [outcome.value for outcome in outcomes] == [[1, 5], [1, 6], [[7, 8], [7, 9], 7]]
    assert variable.get() == 1


def test_a_thread_that_enters_no_mode_leaves_the_modes_of_another_alone() -> None:
    entered, done = threading.Event(), threading.Event()
    before = _python_dispatch.is_in_torch_dispatch_mode()

    def other() -> None:
        with torch.device("meta"), Counting():
            entered.set()
            done.wait(20)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(20)
    fibers = Fibers(echo)

    def waits() -> None:
        with torch.no_grad():
            fibers.wait(0)
            done.set()
            thread.join()
        fibers.wait(1)

    fibers.run([waits])
    assert _device.CURRENT_DEVICE is None
    assert _python_dispatch.is_in_torch_dispatch_mode() == before
