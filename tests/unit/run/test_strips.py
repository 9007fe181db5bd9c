"""Fresh plans run by native code: what launches compute, and which of them Python runs."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import penstock as ps
from penstock.plan.native.machine import NativeMachine
from penstock.plan.planners import planning
from penstock.run.strips import running
from tests.strips import REASON, has_strips, in_strips, noted_strips

pytestmark = pytest.mark.skipif(not has_strips(), reason=REASON)

COUNTS = [1, 2, 3, 1, 0, 4]


@pytest.fixture(autouse=True)
def strips() -> Iterator[None]:
    """At least one launch of every test is run by native code."""
    with in_strips(), noted_strips() as noted:
        yield
        assert noted


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def new_walk(w: Tensor) -> ps.Function:
    """Each row is computed from the one below, and the input that all rows of an instance read."""

    @ps.function
    def walk(x, n):
        def inner():
            return torch.tanh(walk(x, n - 1) @ w) + x

        return ps.cond(n > 0, inner, lambda: (x @ w).sin())

    return walk


def plain_walk(x: Tensor, n: int, w: Tensor) -> Tensor:
    made = (x @ w).sin()
    for _ in range(n):
        made = torch.tanh(made @ w) + x
    return made


def plain_rows(x: Tensor, counts: list[int], w: Tensor) -> list[Tensor]:
    return [plain_walk(row, count, w) for row, count in zip(x, counts, strict=True)]


def run_some_strips() -> None:
    """Where a test may have none of its own."""
    walk = new_walk(draw(4, 4))
    for _ in range(2):
        walk.map(draw(6, 4), COUNTS)


def test_a_plan_that_is_kept_is_run_by_native_code_when_it_comes_again():
    x, w = draw(6, 4), draw(4, 4, seed=1)
    walk = new_walk(w)
    with in_strips(keeps_plans=True):
        for call in range(4):
            with noted_strips() as noted:
                torch.testing.assert_close(walk.map(x, COUNTS), plain_rows(x, COUNTS, w))
            assert bool(noted) == (call > 0)
    run_some_strips()


def test_a_plan_of_the_plain_machine_is_made_anew_once_native_code_is_there():
    x, w = draw(6, 4), draw(4, 4, seed=1)
    walk = new_walk(w)

    def strips_of_a_call() -> int:
        with noted_strips() as noted:
            torch.testing.assert_close(walk.map(x, COUNTS), plain_rows(x, COUNTS, w))
        return len(noted)

    with in_strips(keeps_plans=True):
        with planning("never"):
            assert [strips_of_a_call() for _ in range(3)] == [0, 0, 0]
        spy = patch.object(NativeMachine, "take", autospec=True, side_effect=NativeMachine.take)
        with spy as take:
            assert [bool(strips_of_a_call()) for _ in range(3)] == [False, True, True]
        assert take.call_count == 1
        with planning("never"):
            assert strips_of_a_call()
    run_some_strips()


# ---- operands ------------------------------------------------------------------------------------


def test_a_weight_in_whose_memory_signs_are_turned_is_read_as_it_is():
    x, w = draw(6, 4), draw(4, 4, seed=1)
    walk = new_walk(torch._neg_view(-w))
    for _ in range(3):
        torch.testing.assert_close(walk.map(x, COUNTS), plain_rows(x, COUNTS, w))
    run_some_strips()


@pytest.mark.parametrize("count", [0, 1, 63, 64, 300])
def test_any_number_of_instances_is_right(count):
    w = draw(4, 4, seed=1)
    walk, counts = new_walk(w), [k % 4 for k in range(count)]
    run_some_strips()
    for _ in range(2):
        x = draw(count, 4)
        assert_rows(walk.map(x, counts), plain_rows(x, counts, w))


def assert_rows(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    if expected:
        torch.testing.assert_close(found, expected)


def test_whole_numbers_booleans_and_values_of_the_host_are_right():
    table = draw(10, 4)

    @ps.function
    def mix(x, k, scale, n):
        def inner():
            h, place, flag = mix(x, k, scale, n - 1)
            return torch.where(flag, h * 2, h) + table[place] * scale, (place + k) % 10, ~flag

        return ps.cond(n > 0, inner, lambda: (x * scale, k % 10, x.sum() > 0))

    def plain(x, k, scale, n):
        h, place, flag = x * scale, k % 10, x.sum() > 0
        for _ in range(n):
            h = torch.where(flag, h * 2, h) + table[place] * scale
            place, flag = (place + k) % 10, ~flag
        return h, place, flag

    columns = draw(4, 4), torch.tensor([1, 3, 5, 7]), [0.5, 1.5, 2.0, 3.0], [0, 1, 2, 3]
    for _ in range(3):
        expected = [plain(*row) for row in zip(*columns, strict=True)]
        torch.testing.assert_close(mix.map(*columns), expected)


def test_long_loops_read_slots_of_several_chunks():
    w = draw(4, 4, seed=1)

    @ps.function
    def loop(x, n):
        def body(k, h, g):
            return k + 1, torch.tanh(h @ w) + x, g * 0.5 + h

        return ps.while_loop(lambda k, h, g: k < n, body, (0, x, x))[1:]

    def plain(x, n):
        h = g = x
        for _ in range(n):
            h, g = torch.tanh(h @ w) + x, g * 0.5 + h
        return h, g

    x, counts = draw(3, 4), [1500, 700, 7]
    for _ in range(2):
        expected = [plain(*row) for row in zip(x, counts, strict=True)]
        torch.testing.assert_close(loop.map(x, counts), expected)


@pytest.mark.parametrize("keeps_plans", [False, True])
def test_launches_between_padded_ones_are_run_by_native_code(keeps_plans):
    w = draw(4, 4, seed=1)

    def attend(x, h):
        return torch.softmax(x @ h, 0) @ x

    @ps.function
    def decode(x, n):
        def body(k, h):
            return k + 1, torch.tanh(attend(x, h) @ w)

        return ps.while_loop(lambda k, h: k < n, body, (0, w[0]))[1]

    def plain(x, n):
        h = w[0]
        for _ in range(n):
            h = torch.tanh(attend(x, h) @ w)
        return h

    columns = [draw(size, 4, seed=size) for size in (2, 9, 5)], [12, 9, 7]
    expected = [plain(*row) for row in zip(*columns, strict=True)]
    with in_strips(keeps_plans=keeps_plans):
        for _ in range(3):
            with noted_strips() as noted:
                torch.testing.assert_close(decode.map(*columns), expected)
    assert len(noted) >= 9, "one in nearly every step"


# ---- what else happens ---------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_run_that_is_broken_off_leaves_the_next_one_as_it_was(error):
    x, w, eye = draw(6, 4), draw(4, 4, seed=1), torch.eye(4, dtype=torch.float64)

    @ps.function
    def scaled(x, n):
        def inner():
            return torch.linalg.solve(eye * (n + 1), scaled(x, n - 1) @ w)

        return ps.cond(n > 0, inner, lambda: torch.tanh(x @ w))

    first = scaled.map(x, COUNTS)
    scaled.map(x, COUNTS)

    def fail(*args: object) -> None:
        raise error

    with patch.object(running.Stripped, "_by_python", fail), pytest.raises(error):
        scaled.map(x, COUNTS)
    torch.testing.assert_close(scaled.map(x, COUNTS), first)


class Climber(nn.Module):
    """A leaf is embedded, and goes through the same layer some times."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(10, 4), nn.Linear(4, 4)

    @ps.function
    def forward(self, token, n):
        def inner():
            return torch.tanh(self.linear(self.forward(token, n - 1)))

        return ps.cond(n > 0, inner, lambda: self.embedding(token))

    def plain(self, token: int, n: int) -> Tensor:
        made = self.embedding.weight[token]
        for _ in range(n):
            made = torch.tanh(self.linear(made))
        return made


def test_modules_are_copied_and_pickled_after_strips_have_run():
    model = Climber()
    for _ in range(2):
        model.forward.map(torch.arange(3), [1, 2, 3])
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            other.linear.weight.mul_(2)
        for _ in range(2):
            found = other.forward.map(torch.arange(3), [1, 2, 3])
        torch.testing.assert_close(found, [other.plain(k, k + 1) for k in range(3)])


def test_threads_run_the_same_function_at_once():
    w = draw(4, 4, seed=1)
    walk, wrong = new_walk(w), []

    def work(seed: int) -> None:
        x = draw(6, 4, seed=seed)
        expected = torch.stack(plain_rows(x, COUNTS, w))
        for _ in range(10):
            if not torch.allclose(walk.map(x, COUNTS, out="stack"), expected):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_profile_and_a_policy_see_all_launches():
    x, w = draw(6, 4), draw(4, 4, seed=1).requires_grad_()
    walk = new_walk(w)
    walk.map(x, COUNTS)
    walk.map(x, COUNTS)
    with noted_strips() as noted:
        with ps.profile() as profile:
            walk.map(x, COUNTS)
        with ps.memory("recompute", budget=600):
            walk.map(x, COUNTS)
    assert noted == []
    assert "5 launches" in str(profile)
