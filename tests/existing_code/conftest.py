"""Double precision everywhere, and no test may leave torch changed."""

from __future__ import annotations

import threading
from pathlib import Path

import greenlet
import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from tests.live_fibers import live_fibers

#: Not for the doctest collector, which would import the tables a second time.
collect_ignore = ["programs", "harness.py", "models.py", "random_programs.py"]


def pytest_collection_modifyitems(items):
    """Torch warns, once in a process, where code reads a number that has a gradient."""
    ignore = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(ignore)


@pytest.fixture(autouse=True)
def _double_precision():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def torch_state():
    """What a scope may change while it lasts, and must put back."""
    return {
        "nn.Module.__call__": nn.Module.__call__,
        "nn.Module._call_impl": nn.Module._call_impl,
        "torch.Tensor.__add__": torch.Tensor.__add__,
        "torch.Tensor.backward": torch.Tensor.backward,
        "torch.cat": torch.cat,
        "torch.zeros": torch.zeros,
        "torch.tensor": torch.tensor,
        "torch.nn.functional.linear": nn.functional.linear,
        "torch.autograd.backward": torch.autograd.backward,
        "function modes": len(_get_current_function_mode_stack()),
        "dispatch modes": len(_get_current_dispatch_mode_stack()),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "greenlet": greenlet.getcurrent(),
    }


@pytest.fixture
def unchanged_torch():
    """Asserts that torch, at the end of the test, is what it was at its start."""
    before, threads = torch_state(), set(threading.enumerate())
    yield
    news = set(threading.enumerate()) - threads
    for thread in news:
        thread.join(20)  # a loader's own threads end a moment after its workers
    assert not any(thread.is_alive() for thread in news)
    assert torch_state() == before


@pytest.fixture
def no_fiber_left(young_objects_only):
    """Asserts that no greenlet which the test started is alive at its end."""
    before = set(map(id, live_fibers()))
    yield
    assert [fiber for fiber in live_fibers() if id(fiber) not in before] == []
