"""Programs of which one part runs on a CPU and another on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import penstock as ps

pytestmark = pytest.mark.gpu

WIDTH = 16


def two_stages(
    first: torch.Tensor, second: torch.Tensor, most: int | None = None, *, repeats: int = 0
) -> Any:
    """A loop of a stage on a CPU and one on a GPU, each with a state and a weight of its own; the
    second is longer by so many products.
    """

    @ps.function
    def program(x, n):
        def body(i, a, b):
            with ps.device("cpu:0"):
                a = torch.tanh(a @ first)
            with ps.device("cuda:0"):
                b = torch.tanh(b @ second + a)
                for _ in range(repeats):
                    b = torch.tanh(b @ second)
            return i + 1, a, b

        with ps.device("cuda:0"):
            start = torch.sin(x)
        carried = (0, x, start)
        return ps.while_loop(lambda i, a, b: i < n, body, carried, parallel_iterations=most)[2]

    return program


def make(most: int | None = None) -> tuple[Any, list[torch.Tensor]]:
    """Such a loop, with its weights, whose gradients are asked for."""
    first = (torch.randn(WIDTH, WIDTH, dtype=torch.float64) / 4).requires_grad_()
    second = (torch.randn(WIDTH, WIDTH, dtype=torch.float64, device="cuda") / 4).requires_grad_()
    return two_stages(first, second, most), [first, second]


@pytest.mark.parametrize("most", [None, 1, 4])
def test_values_and_gradients_equal_plain_python(most):
    torch.manual_seed(0)
    program, weights = make(most)
    xs = torch.randn(5, WIDTH, dtype=torch.float64, requires_grad=True)
    trips = [3, 0, 7, 1, 20]
    found = torch.stack(program.map(xs, trips))
    with ps.set_eager(True):
        expected = torch.stack([program(x, n) for x, n in zip(xs, trips, strict=True)])
    assert found.device == expected.device == weights[1].device
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    scale = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad((found * scale).sum(), [*weights, xs]),
        torch.autograd.grad((expected * scale).sum(), [*weights, xs]),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_results_are_ready_on_the_stream_of_the_caller():
    program, _ = make()
    x = torch.randn(64, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        expected = torch.stack(program.map(x, [30] * 64)).cpu()
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5):
                assert torch.equal(torch.stack(program.map(x, [30] * 64)).cpu(), expected)


def test_launches_name_their_devices():
    program, _ = make()
    with torch.no_grad(), ps.profile() as run:
        program.map(torch.randn(4, WIDTH, dtype=torch.float64), [3] * 4)
    assert {launch.device for launch in run.launches} == {"cpu:0", "cuda:0"}


def overlapping(width: int, rows: int) -> Any:
    """A loop with a stage on a CPU and a longer one on a GPU, warm, as a call without arguments."""
    first = torch.randn(width, width) / width**0.5
    second = torch.randn(width, width, device="cuda") / width**0.5
    program = two_stages(first, second, 8, repeats=8)

    def call() -> None:
        with torch.no_grad():
            program.map(torch.ones(rows, width), [20] * rows)

    call()
    return call


def test_parts_on_a_cpu_and_on_a_gpu_run_at_the_same_time():
    call = overlapping(512, 512)
    with ps.profile() as run:
        call()
    spans = {"cpu:0": [], "cuda:0": []}
    for launch in run.launches:
        spans[launch.device].append((launch.began, launch.began + launch.seconds))
    assert any(
        begin < other_end and other_begin < end
        for begin, end in spans["cpu:0"]
        for other_begin, other_end in spans["cuda:0"]
    )


def test_no_thread_waits_for_a_gpu_before_the_end():
    call = overlapping(64, 16)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as found:
        call()
    names = {event.name for event in found.events()}
    assert "cudaMemcpyAsync" in names
    assert not names & {"cudaStreamSynchronize", "cudaEventSynchronize"}


@contextmanager
def synchronisation_is(mode: str) -> Iterator[None]:
    """What becomes of operations that let the host wait for a GPU, on every thread."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is a prototype
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("most", [None, 2])
def test_a_counted_program_partly_on_a_gpu_never_waits_for_it(most):
    program, _ = make(most)
    x = torch.randn(6, WIDTH, dtype=torch.float64)
    trips = [20, 3, 0, 7, 1, 20]
    with torch.no_grad():
        expected = torch.stack(program.map(x, trips))
        with synchronisation_is("error"):
            found = program.map(x, trips, out="stack")
    assert torch.equal(found, expected)


def converging() -> Any:
    """A loop whose predicate is computed on a GPU, with work on a CPU beside it."""

    @ps.function
    def program(x):
        def body(a, b):
            with ps.device("cpu:0"):
                b = torch.tanh(b + 1.0)
            with ps.device("cuda:0"):
                return a * 0.5, b

        def go_on(a, b):
            with ps.device("cuda:0"):
                return a.sum() > 0.01

        with ps.device("cuda:0"):
            start = x * 1.0
        return ps.while_loop(go_on, body, (start, x))

    return program


def test_a_predicate_is_the_only_thing_that_is_waited_for():
    program, x = converging(), torch.ones(WIDTH)
    with torch.no_grad():
        program(x)
        with ps.profile() as run:
            program(x)
        reads = len(run.reads)
        with synchronisation_is("warn"), warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            program(x)
    assert reads > 5
    assert len([each for each in found if "synchronizing" in str(each.message)]) == reads


def test_copies_to_a_gpu_go_along_with_its_kernels_on_a_stream_of_their_own():
    call = overlapping(64, 16)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as found:
        torch.arange(8, device="cuda").flip(0)
        call()
        torch.cuda.synchronize()
    events = [each for each in found.events() if each.device_type.name == "CUDA"]
    copies = {each.device_resource_id for each in events if "HtoD" in each.name}
    kernels = {each.device_resource_id for each in events if "flip" not in each.name}
    default = {each.device_resource_id for each in events if "flip" in each.name}
    assert default
    assert copies
    assert copies <= kernels - default
