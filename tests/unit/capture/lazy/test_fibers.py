"""Calls in fibers: who waits, who goes on, what an exception does, and that nothing is left."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from greenlet import GreenletExit, getcurrent

from penstock.capture.lazy.fibers import Fibers, Wait
from penstock.errors import WaitError
from tests.live_fibers import live_fibers


def echo(waits: list[Wait]) -> None:
    for wait in waits:
        wait.answer = wait.request


class Flushes:
    """Answers with ten times the request, and remembers who waited."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, waits: list[Wait]) -> None:
        self.seen.append([wait.number for wait in waits])
        for wait in waits:
            wait.answer = wait.request * 10


@pytest.fixture(autouse=True)
def _no_fiber_is_left(young_objects_only: None) -> Iterator[None]:
    before = len(live_fibers())
    yield
    assert len(live_fibers()) <= before


def test_outcomes_are_those_of_a_plain_loop() -> None:
    fibers = Fibers(echo)
    assert fibers.run([]) == []
    outcomes = fibers.run([lambda n=n: n * n for n in range(5)])
    assert [outcome.value for outcome in outcomes] == [0, 1, 4, 9, 16]
    assert [outcome.error for outcome in outcomes] == [None] * 5


def test_all_fibers_wait_before_one_flush_answers_them() -> None:
    flushes = Flushes()
    fibers = Fibers(flushes)

    def counts(limit: int) -> list[int]:
        return [fibers.wait(step) for step in range(limit)]

    outcomes = fibers.run([lambda n=n: counts(n) for n in (1, 3, 0, 2)])
    assert [outcome.value for outcome in outcomes] == [[0], [0, 10, 20], [], [0, 10]]
    assert flushes.seen == [[0, 1, 3], [1, 3], [1]]


def test_fibers_go_on_in_the_order_of_a_loop() -> None:
    fibers = Fibers(echo)
    steps: list[tuple[int | None, int]] = []

    def walks() -> None:
        for step in range(3):
            steps.append((fibers.current, step))
            fibers.wait(0)

    fibers.run([walks] * 3)
    assert steps == [(number, step) for step in range(3) for number in range(3)]
    assert fibers.current is None


def test_the_hub_is_no_instance() -> None:
    currents: list[int | None] = []

    def flush(waits: list[Wait]) -> None:
        currents.append(fibers.current)

    fibers = Fibers(flush)
    outcomes = fibers.run([lambda: fibers.wait(0), lambda: fibers.current], numbers=[7, 9])
    assert [outcome.value for outcome in outcomes] == [None, 9]
    assert currents == [None]


def test_calls_that_never_wait_share_one_greenlet() -> None:
    fibers = Fibers(echo)
    outcomes = fibers.run([lambda: id(getcurrent())] * 100)
    assert len({outcome.value for outcome in outcomes}) == 1
    outcomes = fibers.run([lambda: id(getcurrent()), lambda: fibers.wait(id(getcurrent()))] * 3)
    assert len({outcome.value for outcome in outcomes}) == 3


def test_a_generator_may_wait() -> None:
    flushes = Flushes()
    fibers = Fibers(flushes)

    def numbers() -> Iterator[int]:
        for step in range(3):
            yield fibers.wait(step)

    outcomes = fibers.run([lambda: sum(numbers())] * 2)
    assert [outcome.value for outcome in outcomes] == [30, 30]
    assert flushes.seen == [[0, 1]] * 3


def test_an_exception_being_handled_stays_with_its_fiber() -> None:
    fibers = Fibers(echo)

    def handles(name: str) -> str:
        try:
            raise KeyError(name)
        except KeyError:
            fibers.wait(0)
            return str(sys.exc_info()[1])

    outcomes = fibers.run([lambda: handles("a"), lambda: handles("b")])
    assert [outcome.value for outcome in outcomes] == ["'a'", "'b'"]


def test_deep_recursion_works_as_in_plain_python() -> None:
    fibers = Fibers(echo)

    def descends(depth: int) -> int:
        return fibers.wait(0) if depth == 0 else 1 + descends(depth - 1)

    depth = sys.getrecursionlimit() - _depth_here() - 40
    outcomes = fibers.run([lambda: descends(depth)] * 3)
    assert [outcome.value for outcome in outcomes] == [depth] * 3
    outcomes = fibers.run([lambda: descends(depth + 100)] * 2, on_error="return")
    assert [type(outcome.error) for outcome in outcomes] == [RecursionError] * 2


def _depth_here() -> int:
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


def failing(fibers: Fibers, fails: int, log: list[str]) -> Callable[[int], None]:
    """A call that fails in the second round if it is number `fails`, and waits for ever else."""

    def call(number: int) -> None:
        try:
            fibers.wait(0)
            if number == fails:
                raise ValueError(f"mine {number}")
            while True:
                fibers.wait(1)
        finally:
            log.append(f"left {number}")

    return call


def test_an_exception_stops_the_others_and_is_raised_as_itself() -> None:
    fibers, log = Fibers(echo), []
    call = failing(fibers, 2, log)
    describe = "in instance {} of model.map".format
    with pytest.raises(ValueError, match="mine 2") as raised:
        fibers.run([lambda n=n: call(n) for n in range(4)], describe=describe)
    assert raised.value.__notes__ == ["in instance 2 of model.map"]
    assert log == ["left 2", "left 3", "left 1", "left 0"]
    names = [entry.name for entry in raised.traceback]
    assert "call" in names
    assert "_carry_out" not in names


def test_of_several_exceptions_the_first_in_order_is_raised() -> None:
    fibers = Fibers(echo)

    def fails(number: int) -> None:
        fibers.wait(0)
        raise ValueError(number)

    with pytest.raises(ValueError, match="0") as raised:
        fibers.run([lambda n=n: fails(n) for n in range(3)])
    assert raised.value.__notes__ == ["in instance 0"]


def test_a_call_that_has_not_begun_is_not_begun_after_an_exception() -> None:
    fibers, begun = Fibers(echo), []

    def call(number: int) -> None:
        begun.append(number)
        if number == 1:
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fibers.run([lambda n=n: call(n) for n in range(5)])
    assert begun == [0, 1]


def test_an_exception_can_take_the_place_of_its_value() -> None:
    flushes = Flushes()
    fibers = Fibers(flushes)

    def call(number: int) -> int:
        first = fibers.wait(number)
        if number % 2:
            raise ValueError(number)
        return first + fibers.wait(1)

    outcomes = fibers.run([lambda n=n: call(n) for n in range(4)], on_error="return")
    assert [outcome.value for outcome in outcomes] == [10, None, 30, None]
    assert [type(outcome.error) for outcome in outcomes] == [type(None), ValueError] * 2
    assert flushes.seen == [[0, 1, 2, 3], [0, 2]]


def test_flush_can_answer_with_an_error() -> None:
    def flush(waits: list[Wait]) -> None:
        for wait in waits:
            if wait.request < 0:
                wait.error = ArithmeticError(f"bad {wait.request}")

    fibers = Fibers(flush)

    def call(request: int) -> str:
        try:
            fibers.wait(request)
        except ArithmeticError as error:
            return str(error)
        return "good"

    outcomes = fibers.run([lambda n=n: call(n) for n in (-1, 1, -2)])
    assert [outcome.value for outcome in outcomes] == ["bad -1", "good", "bad -2"]


def test_an_exception_of_flush_stops_all_and_is_raised() -> None:
    def flush(waits: list[Wait]) -> None:
        raise MemoryError("flush")

    fibers, log = Fibers(flush), []
    call = failing(fibers, 0, log)
    with pytest.raises(MemoryError, match="flush"):
        fibers.run([lambda n=n: call(n) for n in range(3)], on_error="return")
    assert log == ["left 2", "left 1", "left 0"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, GreenletExit])
@pytest.mark.parametrize("is_nested", [False, True])
def test_what_is_no_exception_stops_all_and_is_raised(
    kind: type[BaseException], is_nested: bool
) -> None:
    fibers, log = Fibers(echo), []
    call = failing(fibers, -1, log)

    def interrupted() -> None:
        fibers.wait(0)
        fibers.wait(1)
        raise kind

    def nests() -> None:
        try:
            fibers.run([interrupted, lambda: call(4)], on_error="return")
        finally:
            log.append("left parent")

    first = nests if is_nested else interrupted
    with pytest.raises(kind):
        fibers.run([first, lambda: call(1), lambda: call(2)], on_error="return")
    assert log == ["left 2", "left 1", *(["left 4", "left parent"] if is_nested else [])]


def test_a_real_interrupt_in_flush_stops_all() -> None:
    def flush(waits: list[Wait]) -> None:
        raise KeyboardInterrupt

    fibers, log = Fibers(flush), []
    call = failing(fibers, -1, log)
    with pytest.raises(KeyboardInterrupt):
        fibers.run([lambda n=n: call(n) for n in range(2)])
    assert log == ["left 1", "left 0"]
    assert [outcome.value for outcome in Fibers(echo).run([lambda: 1])] == [1]


def test_an_interrupt_while_fibers_are_stopped_is_raised() -> None:
    fibers = Fibers(echo)

    def interrupts() -> None:
        try:
            fibers.wait(0)
        finally:
            raise KeyboardInterrupt

    def fails() -> None:
        fibers.wait(0)
        raise ValueError("mine")

    with pytest.raises(KeyboardInterrupt):
        fibers.run([fails, interrupts, interrupts])


def test_what_a_stopped_fiber_raises_is_noted() -> None:
    fibers = Fibers(echo)

    def raises() -> None:
        try:
            fibers.wait(0)
        finally:
            raise KeyError("cleanup")

    def fails() -> None:
        fibers.wait(0)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as raised:
        fibers.run([fails, raises])
    assert raised.value.__notes__ == [
        "in instance 0",
        "in instance 1, while it was stopped: KeyError('cleanup')",
    ]


def test_a_fiber_that_is_stopped_may_swallow_it_and_end() -> None:
    fibers, log = Fibers(echo), []

    def swallows() -> None:
        for step in range(3):
            try:
                fibers.wait(0)
            except BaseException:
                log.append(step)

    def fails() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fibers.run([swallows, fails])
    assert log == [0, 1, 2]


STUBBORN = """
from penstock.capture.lazy.fibers import Fibers

def echo(waits):
    pass

fibers = Fibers(echo)

def stubborn():
    while True:
        try:
            fibers.wait(0)
        except BaseException:
            pass

def fails():
    fibers.wait(0)
    raise ValueError("mine")

for _ in range(2):
    try:
        fibers.run([fails, stubborn, lambda: fibers.wait(0)])
    except ValueError as error:
        print("raised", error, fibers.current)
print(fibers.run([lambda: fibers.wait(1)])[0].error)
"""


def test_a_fiber_that_will_not_stop_is_abandoned_with_a_warning() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUBBORN], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["raised mine None"] * 2 + ["None"]
    assert "PenstockWarning: Instances of a map had to be stopped and would not end" in done.stderr
    assert "instances     1" in done.stderr


def test_calls_inside_a_call_wait_together_with_all_others() -> None:
    flushes = Flushes()
    fibers = Fibers(flushes)

    def leaf(request: int) -> int:
        return fibers.wait(request) + fibers.wait(request)

    def nests(base: int) -> list[int]:
        calls = [lambda n=n: leaf(base + n) for n in range(2)]
        found = [outcome.value for outcome in fibers.run(calls, numbers=[100, 101])]
        assert fibers.current == base
        return found

    outcomes = fibers.run([lambda: nests(0), lambda: leaf(5), lambda: nests(2)])
    assert [outcome.value for outcome in outcomes] == [[0, 20], 100, [40, 60]]
    assert flushes.seen == [[100, 101, 1, 100, 101]] * 2


def test_calls_nest_at_any_depth() -> None:
    flushes = Flushes()
    fibers = Fibers(flushes)

    def tree(depth: int) -> int:
        if depth == 0:
            return fibers.wait(1)
        return sum(outcome.value for outcome in fibers.run([lambda: tree(depth - 1)] * 2))

    assert fibers.run([lambda: tree(4)])[0].value == 160
    assert len(flushes.seen) == 1


def test_an_exception_inside_stops_its_own_group_alone() -> None:
    fibers, log = Fibers(echo), []
    call = failing(fibers, 1, log)

    def nests() -> str:
        try:
            fibers.run([lambda n=n: call(n) for n in range(3)])
        except ValueError as error:
            return f"{error} {error.__notes__}"
        return ""

    outcomes = fibers.run([nests, lambda: fibers.wait(3) + fibers.wait(4) + fibers.wait(5)])
    assert [outcome.value for outcome in outcomes] == ["mine 1 ['in instance 1']", 12]
    assert log == ["left 1", "left 2", "left 0"]


def test_calls_are_stopped_before_the_call_that_made_them() -> None:
    fibers, log = Fibers(echo), []
    call = failing(fibers, 9, log)

    def nests() -> None:
        try:
            fibers.run([lambda: call(5), lambda: call(6)])
        finally:
            log.append("left parent")

    with pytest.raises(ValueError, match="mine 9"):
        fibers.run([nests, lambda: call(9)])
    assert log == ["left 9", "left 6", "left 5", "left parent"]


def test_other_fibers_inside_a_fiber_are_apart() -> None:
    outer_flushes, inner_flushes = Flushes(), Flushes()
    outer, inner = Fibers(outer_flushes), Fibers(inner_flushes)

    def mixed() -> list[int]:
        calls = [lambda: (inner.wait(1), outer.wait(2), inner.wait(3))] * 2
        found = [sum(outcome.value) for outcome in Fibers.run(inner, calls)]
        return [*found, outer.wait(4)]

    outcomes = outer.run([lambda: outer.wait(1), mixed])
    assert [outcome.value for outcome in outcomes] == [10, [60, 60, 40]]
    assert inner_flushes.seen == [[0, 1], [0, 1]]


def test_side_effects_in_turn_happen_in_the_order_of_a_loop() -> None:
    fibers, log = Fibers(echo), []

    def call(number: int) -> None:
        for _ in range(3 - number):
            fibers.wait(0)
        fibers.wait_for_turn()
        log.append((number, "begins"))
        fibers.wait(0)
        log.append((number, "ends"))

    fibers.run([lambda n=n: call(n) for n in range(4)])
    assert log == [(number, step) for number in range(4) for step in ("begins", "ends")]


def test_turns_of_calls_inside_calls_follow_the_loop_too() -> None:
    fibers, log = Fibers(echo), []

    def leaf(name: str) -> None:
        fibers.wait_for_turn()
        log.append(name)

    def nests(name: str) -> None:
        fibers.wait(0)
        fibers.run([lambda n=n: leaf(f"{name}{n}") for n in range(2)])
        fibers.wait_for_turn()
        log.append(name)

    fibers.run([lambda: nests("a"), lambda: leaf("b"), lambda: nests("c")])
    assert log == ["a0", "a1", "a", "b", "c0", "c1", "c"]


def test_who_waits_for_a_turn_is_stopped_too() -> None:
    fibers, log = Fibers(echo), []

    def turns() -> None:
        try:
            fibers.wait_for_turn()
        finally:
            log.append("left")

    def fails() -> None:
        fibers.wait(0)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fibers.run([fails, turns, turns])
    assert log == ["left", "left"]
    assert fibers.run([turns])[0].error is None


def test_several_threads_run_fibers_at_once() -> None:
    results: dict[int, list[Any]] = {}

    def work(seed: int) -> None:
        fibers = Fibers(echo)

        def call(number: int) -> tuple[int, bool]:
            total = 0
            with torch.set_grad_enabled(number % 2 == 0):
                for step in range(50):
                    total += fibers.wait(seed * step)
                return total, torch.is_grad_enabled()

        outcomes = fibers.run([lambda n=n: call(n) for n in range(20)])
        results[seed] = [outcome.value for outcome in outcomes]

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {seed: [(seed * 1225, number % 2 == 0) for number in range(20)] for seed in range(6)}
    assert results == expected


def test_waiting_outside_of_fibers_or_on_another_thread_raises() -> None:
    fibers = Fibers(echo)
    with pytest.raises(WaitError, match="cannot be read here"):
        fibers.wait(0)
    found: list[BaseException] = []

    def other() -> None:
        try:
            fibers.wait(0)
        except WaitError as error:
            found.append(error)

    def call() -> int:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return fibers.wait(3)

    assert fibers.run([call])[0].value == 3
    assert "runs outside of the instances of the map, or on another thread" in str(found[0])


def test_nothing_holds_on_to_what_the_calls_used() -> None:
    class Held:
        pass

    def flush(waits: list[Wait]) -> None:
        for wait in waits:
            if wait.number == 1:
                wait.error = ValueError("mine")

    fibers = Fibers(flush)
    references: list[weakref.ref[Held]] = []

    def call(number: int) -> None:
        held = Held()
        references.append(weakref.ref(held))
        fibers.wait(held)
        fibers.wait(held)

    gc.disable()
    try:
        fibers.run([lambda: call(0)] * 3, numbers=[0, 2, 3])
        assert [reference() for reference in references] == [None] * 3
        with pytest.raises(ValueError, match="mine") as raised:
            fibers.run([lambda n=n: call(n) for n in range(3)])
        del raised
        assert [reference() for reference in references] == [None] * 6
    finally:
        gc.enable()


def test_switches_are_the_same_every_time() -> None:
    def trace() -> list[tuple[int | None, int]]:
        log: list[tuple[int | None, int]] = []
        fibers = Fibers(echo)

        def call(number: int) -> None:
            for step in range(number % 3 + 1):
                log.append((fibers.current, step))
                fibers.wait(0)
                if number % 4 == 0:
                    fibers.run([lambda: log.append((fibers.current, -1))] * 2)
            fibers.wait_for_turn()
            log.append((fibers.current, -2))

        fibers.run([lambda n=n: call(n) for n in range(12)])
        return log

    assert trace() == trace()
