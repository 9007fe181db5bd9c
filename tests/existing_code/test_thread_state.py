"""Fibers keep torch's thread-local state apart: what one instance sets, no other sees."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import penstock as ps
from tests.existing_code.harness import Maker

pytestmark = pytest.mark.usefixtures("unchanged_torch")


def interleaved(enter, look):
    """What instances see after a wait, of which every second one entered something before it."""

    def run(k):
        x = torch.tensor(float(k))
        if k % 2:
            with enter():
                before = look()
                (x * 2).item()
                after = look()
        else:
            before = look()
            (x * 2).item()
            after = look()
        (x * 3).item()
        return before, after, look()

    found = ps.map(run, list(range(4)))
    with enter():
        inside = look()
    outside = look()
    assert inside != outside
    expected = [(inside, inside, outside) if k % 2 else (outside,) * 3 for k in range(4)]
    assert found == expected


def test_grad_mode_is_kept_apart():
    interleaved(torch.no_grad, torch.is_grad_enabled)


def test_inference_mode_is_kept_apart():
    interleaved(torch.inference_mode, torch.is_inference_mode_enabled)


def test_autocast_is_kept_apart():
    interleaved(
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
    )


def test_the_autocast_dtype_is_kept_apart():
    interleaved(
        lambda: torch.autocast("cpu", dtype=torch.float16),
        lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
    )


class Counting(TorchFunctionMode):
    """Counts the torch functions called under it."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func)
        return func(*args, **(kwargs or {}))


class Passing(TorchDispatchMode):
    """Lets everything pass."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_function_modes_are_kept_apart():
    seen = {}

    def run(k):
        x = torch.tensor(float(k))
        if k % 2:
            with Counting() as mode:
                y = x * 2
                y.item()
                z = y + 1
            seen[k] = len(mode.names) > 0
            (z * 2).item()
            return z
        (x * 2).item()
        return x * 2 + 1

    assert [float(y) for y in ps.map(run, list(range(4)))] == [1.0, 3.0, 5.0, 7.0]
    assert seen == {1: True, 3: True}


def test_dispatch_modes_are_kept_apart():
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    interleaved(Passing, lambda: len(_get_current_dispatch_mode_stack()))


def test_the_default_device_is_kept_apart():
    def look():
        return str(torch.get_default_device())

    interleaved(lambda: torch.device("meta"), look)


def test_saved_tensor_hooks_are_kept_apart():
    packed = []

    def run(k):
        x = torch.tensor(float(k + 1), requires_grad=True)
        if k == 0:
            with torch.autograd.graph.saved_tensors_hooks(
                lambda tensor: packed.append(k) or tensor, lambda tensor: tensor
            ):
                (x.detach() * 2).item()
                y = x * x
        else:
            (x.detach() * 2).item()
            y = x * x
        (x.detach() * 3).item()
        return y

    results = ps.map(run, list(range(3)))
    assert [float(y.detach()) for y in results] == [1.0, 4.0, 9.0]
    assert set(packed) <= {0}


def test_saved_tensor_hooks_around_a_map_do_not_break_it():
    rows = Maker().tensors(3, 2)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        results = ps.map(lambda x: x * x, rows)
    gradients = torch.autograd.grad(sum(y.sum() for y in results), rows)
    torch.testing.assert_close(list(gradients), [2 * x.detach() for x in rows])


def test_deterministic_algorithms_and_the_default_dtype_hold_inside():
    torch.use_deterministic_algorithms(True)
    try:
        found = ps.map(
            lambda k: (torch.are_deterministic_algorithms_enabled(), torch.zeros(1).dtype),
            list(range(2)),
        )
    finally:
        torch.use_deterministic_algorithms(False)
    assert found == [(True, torch.float64)] * 2


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: torch.func.vmap(f),
        lambda f: torch.func.grad(lambda x: f(x).sum()),
        lambda f: lambda x: torch.func.jvp(f, (x,), (x,)),
    ],
    ids=["vmap", "grad", "jvp"],
)
def test_waiting_inside_a_torch_func_transform_raises(transform):
    outer = torch.ones(3)

    def run(k):
        recorded = outer * k

        def inner(x):
            recorded.sum().item()
            return x * 2

        return transform(inner)(torch.ones(3))

    with pytest.raises(ps.errors.PenstockError, match=r"torch\.func|vmap|transform"):
        ps.map(run, list(range(2)))


def test_a_module_under_no_grad_in_one_instance_only():
    layer = nn.Linear(2, 2)

    def run(x, frozen):
        if frozen:
            with torch.no_grad():
                return layer(x)
        return layer(x)

    found = ps.map(run, Maker().tensors(4, 2), [True, False, True, False])
    assert [y.requires_grad for y in found] == [False, True, False, True]


def test_contextvars_of_the_caller_are_seen_inside():
    from contextvars import ContextVar

    variable = ContextVar("variable", default=0)
    token = variable.set(5)
    try:
        assert ps.map(lambda k: variable.get() + k, list(range(3))) == [5, 6, 7]
    finally:
        variable.reset(token)
