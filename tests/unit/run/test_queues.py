"""Device queues: order, overlap, bounds on iterations in flight, failures; nothing hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import penstock as ps
from penstock.autodiff.page import Page
from penstock.autodiff.queued import QueuedTapedRun
from penstock.ir.devices import Device
from penstock.run.engine import QueuedRun
from penstock.run.prepared import PreparedLaunch
from penstock.run.queues import find_queue, put_tasks
from tests.placed_programs import PLACED, loop_across_devices
from tests.placing import slow_device

#: No test waits as long, unless something hangs.
LONG = 60.0


def two_stages(parallel_iterations: int | None) -> Any:
    """A loop of two stages, each with a state of its own."""

    @ps.function
    def loop(x, n):
        def body(i, a, b):
            with ps.device("cpu:0"):
                a = torch.sin(a)
            with ps.device("cpu:1"):
                b = torch.cos(a + b)
            return i + 1, a, b

        return ps.while_loop(
            lambda i, a, b: i < n, body, (0, x, x), parallel_iterations=parallel_iterations
        )[2]

    return loop


@contextmanager
def watched(before: Callable[[str], None], after: Callable[[str], None]) -> Iterator[None]:
    """Calls that are told of each launch, on the thread of its device."""
    step = QueuedRun._step

    def tell(run: QueuedRun, prepared: Any) -> Any:
        name = prepared.block.name if isinstance(prepared, PreparedLaunch) else None
        if name is not None:
            before(name)
        try:
            return step(run, prepared)
        finally:
            if name is not None:
                after(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QueuedRun, "_step", tell)
        yield


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("slow", [0, 1])
def test_no_more_iterations_are_in_flight_than_asked_for(most, slow):
    events: list[tuple[str, str]] = []
    program = two_stages(most)
    with (
        torch.no_grad(),
        slow_device(slow, 1e-3),
        watched(
            lambda name: events.append(("begin", name)), lambda name: events.append(("end", name))
        ),
    ):
        program(torch.ones(2), 8)
    begun = [k for k, (what, name) in enumerate(events) if what == "begin" and "sin" in name]
    ended = [k for k, (what, name) in enumerate(events) if what == "end" and "cos" in name]
    assert len(begun) == len(ended) == 8
    for iteration in range(8 - most):
        assert begun[iteration + most] > ended[iteration]


def test_iterations_overlap_where_nothing_hinders_them():
    second_begun = threading.Event()
    launches: list[str] = []
    waited: list[bool] = []

    def before(name: str) -> None:
        launches.append(name)
        if sum("sin" in each for each in launches) == 2:
            second_begun.set()
        if "cos" in name and not waited:
            waited.append(second_begun.wait(LONG))

    with torch.no_grad(), watched(before, lambda name: None):
        two_stages(2)(torch.ones(2), 4)
    assert waited == [True]


def test_a_device_does_not_wait_for_launches_whose_results_it_does_not_need():
    """The second device is done while the first is still busy with something else."""
    done = threading.Event()
    waited: list[bool] = []

    @ps.function
    def program(x):
        with ps.device("cpu:0"):
            a = torch.sin(x)
            c = torch.exp(x @ torch.eye(2))
        with ps.device("cpu:1"):
            b = torch.cos(a)
        return b, c

    def before(name: str) -> None:
        if "exp" in name and "sin" not in name:
            waited.append(done.wait(LONG))

    graph = str(program.graph(torch.ones(2)))
    with torch.no_grad(), watched(before, lambda name: done.set() if "cos" in name else None):
        found = program(torch.ones(2))
    assert torch.equal(found[0], torch.cos(torch.sin(torch.ones(2))))
    assert waited == ([True] if graph.count("block") == 3 else [])


def test_a_long_loop_goes_through_many_batches_of_tasks():
    program = two_stages(None)
    x = torch.full((2,), 0.5, dtype=torch.float64)
    with torch.no_grad():
        found = program(x, 1500)
        with ps.set_eager(True):
            assert torch.equal(found, program(x, 1500))


TABLE = torch.arange(3.0)


@ps.function
def look_up(x, n):
    with ps.device("cpu:0"):
        which = x * 2
    with ps.device("cpu:1"):
        y = TABLE.index_select(0, which)  # blamed
    with ps.device("cpu:0"):
        return ps.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, torch.sin(y)), (0, y))[1]


def test_a_failing_launch_ends_the_call_with_the_user_line_and_the_instance():
    good, bad = torch.tensor([0, 1]), torch.tensor([0, 2])
    with torch.no_grad():
        with pytest.raises((IndexError, RuntimeError)) as caught:
            look_up.map([good, good, bad], [0, 0, 0])
        notes = "\n".join(caught.value.__notes__)
        assert "instance 2" in notes
        assert "test_queues.py" in notes
        assert [each.tolist() for each in look_up.map([good, good], [0, 0])] == [[0, 2]] * 2


def test_what_comes_after_a_failure_is_not_begun():
    launches: list[str] = []
    failure = pytest.raises((IndexError, RuntimeError))
    with torch.no_grad(), watched(launches.append, lambda name: None), failure:
        look_up(torch.tensor([2]), 50)
    assert any("index_select" in name for name in launches)
    assert not any("sin" in name for name in launches)


def test_a_failure_of_the_planner_waits_for_what_is_under_way():
    @ps.function
    def program(xs, i):
        with ps.device("cpu:0"):
            ys = torch.sin(xs)
        with ps.device("cpu:1"):
            return torch.cos(ys[i])

    with torch.no_grad(), slow_device(0), pytest.raises(IndexError):
        program(torch.ones(3, 2), 7)


def test_a_failing_backward_half_is_raised_where_backward_was_called(monkeypatch):
    made = loop_across_devices()
    go_back = Page.go_back

    def fail(page: Page, *args: Any) -> Any:
        if threading.current_thread().name == "penstock cpu:0":
            raise ValueError("no gradient today")
        return go_back(page, *args)

    total = sum(output.sum() for output in made.function.map(*made.columns))
    monkeypatch.setattr(Page, "go_back", fail)
    with pytest.raises(ValueError, match="no gradient today"):
        total.backward(retain_graph=True)
    monkeypatch.undo()
    with torch.no_grad():
        made.function.map(*made.columns)


def test_calls_on_several_threads_do_not_disturb_each_other():
    made = [PLACED[name]() for name in ("loop_across_devices", "nested_loops_cut_in_the_middle")]
    with ps.set_eager(True):
        expected = [[each.function(*row) for row in each.instances] for each in made]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            each = made[number]
            for _ in range(15):
                for one, other in zip(
                    each.function.map(*each.columns), expected[number], strict=True
                ):
                    torch.testing.assert_close(one, other)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()
    assert not failures


def test_placed_programs_run_in_inference_mode_and_under_autocast_as_others_do():
    made = loop_across_devices()
    with torch.inference_mode():
        found = made.function.map(*made.columns)
    with ps.set_eager(True), torch.no_grad():
        expected = [made.function(*instance) for instance in made.instances]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)

    @ps.function
    def product(x):
        with ps.device("cpu:0"):
            x = x @ x
        with ps.device("cpu:1"):
            return x @ x

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert product(torch.eye(2)).dtype == torch.bfloat16


@contextmanager
def state_of_launches(found: set[Any], state: Callable[[], Any]) -> Iterator[None]:
    """Calls whose launches note what torch says on the thread that runs them."""
    with watched(lambda name: found.add(state()), lambda name: None):
        yield


def test_threads_of_devices_record_nothing_for_autograd():
    """Values would hold what they were made of, and products would go another way."""
    made = loop_across_devices()
    found: set[bool] = set()
    with torch.no_grad(), state_of_launches(found, torch.is_grad_enabled):
        made.function.map(*made.columns)
    with pytest.MonkeyPatch.context() as patch:
        step = QueuedTapedRun._step
        patch.setattr(
            QueuedTapedRun,
            "_step",
            lambda *each: (found.add(torch.is_grad_enabled()), step(*each))[1],
        )
        made.function.map(*made.columns)
    assert found == {False}


def test_operations_of_a_device_use_as_many_threads_as_torch_is_set_to():
    made, before = loop_across_devices(), torch.get_num_threads()
    try:
        for count in (1, 2, 1):
            torch.set_num_threads(count)
            found: set[int] = set()
            with torch.no_grad(), state_of_launches(found, torch.get_num_threads):
                made.function.map(*made.columns)
            assert found == {count}
    finally:
        torch.set_num_threads(before)


def test_threads_are_reused_and_named_after_their_devices():
    made = loop_across_devices()
    made.function.map(*made.columns)
    before = {thread for thread in threading.enumerate() if "penstock" in thread.name}
    made.function.map(*made.columns)
    after = {thread for thread in threading.enumerate() if "penstock" in thread.name}
    assert before == after
    assert {"penstock cpu:0", "penstock cpu:1"} <= {thread.name for thread in after}


def test_records_of_launches_name_the_device():
    made = loop_across_devices()
    with torch.no_grad(), ps.profile() as run:
        made.function.map(*made.columns)
    assert {launch.device for launch in run.launches} == {"cpu:0", "cpu:1"}


def test_a_map_of_no_instances_is_empty():
    made = loop_across_devices()
    assert made.function.map([], []) == []


def test_threads_end_with_the_interpreter():
    code = (
        "from tests.placed_programs import loop_across_devices as make\n"
        "made = make()\n"
        "sum(x.sum() for x in made.function.map(*made.columns)).backward()\n"
        "print('done')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=5 * LONG, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr


class Interrupting(list):
    """Tasks that Ctrl-C comes between."""

    def __iter__(self):
        yield from list.__iter__(self)
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_finds_the_tasks_of_all_queues_put_or_of_none():
    done, first, second = [], find_queue(Device(0, "cpu:1")), find_queue(Device(0, "cpu:2"))
    tasks = [
        (first, [lambda: done.append("first")]),
        (second, Interrupting([lambda: done.append("second")])),
    ]
    with pytest.raises(KeyboardInterrupt):
        put_tasks(tasks, lambda: done.append("noted"))
    is_through = threading.Event()
    put_tasks([(first, [is_through.set])], lambda: None)
    assert is_through.wait(LONG)
    assert not done
