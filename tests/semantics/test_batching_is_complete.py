"""Batching is complete: programs need the launches of a hand-batched version, and no more.

Counts only, never times. A dry schedule tells the count where control is known beforehand; where
it depends on computed values, the program is run under a profile.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

import penstock as ps
from penstock.data import Tree
from penstock.demo import TreeLSTM

WIDTH = 3

Function = Any


def numbers(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weight() -> Tensor:
    return torch.randn(WIDTH, WIDTH, generator=numbers(0)) / 2


def vectors(count: int) -> Tensor:
    return torch.randn(count, WIDTH, generator=numbers(1))


def counts(function: Function, *columns: Any) -> Counter[str]:
    """Launches by the operations of their block, from the plan alone."""
    schedule = function.schedule(*columns)
    return Counter(schedule.blocks[launch.block].split(":")[1] for launch in schedule.launches)


def measured(function: Function, *columns: Any) -> Counter[str]:
    """The same, from what really ran."""
    with torch.no_grad(), ps.profile() as run:
        function.map(*columns)
    return Counter(launch.block.split(":")[1] for launch in run.launches)


@pytest.fixture(scope="module")
def model() -> TreeLSTM:
    return TreeLSTM(vocabulary=20, embedding=WIDTH, hidden=WIDTH)


def perfect(depth: int) -> Any:
    """A perfect binary tree as nested pairs."""
    return 1 if depth == 0 else (perfect(depth - 1), perfect(depth - 1))


def chain(depth: int) -> Any:
    """A tree with a leaf at every depth."""
    return 1 if depth == 0 else (chain(depth - 1), 2)


LEAF, CELL = "embedding_linear_chunk", "cat_linear_chunk"


@pytest.mark.parametrize("batch", [1, 2, 17, 64])
@pytest.mark.parametrize("depth", [0, 1, 2, 6])
def test_perfect_trees_need_one_launch_per_level_for_any_batch(
    model: TreeLSTM, depth: int, batch: int
) -> None:
    forest = [Tree.from_nested(perfect(depth))] * batch
    expected = Counter({LEAF: 1, CELL: depth}) if depth else Counter({LEAF: 1})
    assert counts(model.forward, forest) == expected
    assert sum(expected.values()) == depth + 1


def test_what_runs_is_what_was_planned(model: TreeLSTM) -> None:
    forest = [Tree.from_nested(perfect(depth)) for depth in (3, 1, 0, 2)]
    assert measured(model.forward, forest) == counts(model.forward, forest) == {LEAF: 1, CELL: 3}


def test_leaves_at_different_depths_share_one_launch(model: TreeLSTM) -> None:
    forest = [Tree.from_nested(chain(depth)) for depth in (0, 1, 4, 9)]
    schedule = model.forward.schedule(forest)
    rows = [item.rows for item in schedule.launches if LEAF in schedule.blocks[item.block]]
    assert rows == [1 + 2 + 5 + 10]
    assert counts(model.forward, forest) == {LEAF: 1, CELL: 9}


@pytest.mark.parametrize("trips", [[5], [0, 0], [0, 3, 9, 2], [7] * 40])
def test_a_counted_loop_needs_the_longest_trip_count(trips: list[int]) -> None:
    turn = weight()

    @ps.function
    def loop(n: Any, x: Tensor) -> Tensor:
        return ps.while_loop(
            lambda k, x: k < n, lambda k, x: (k + 1, torch.tanh(x @ turn)), (0, x)
        )[1]

    assert counts(loop, trips, vectors(len(trips)))["matmul_tanh"] == max(trips)


def test_a_loop_on_computed_values_needs_the_longest_trip_count() -> None:
    @ps.function
    def halve(x: Tensor) -> Tensor:
        return ps.while_loop(lambda x: x.norm() > 1.5, lambda x: (torch.mul(x, 0.5),), (x,))[0]

    trips = [0, 3, 7, 1, 5]
    starts = [2.0**trip * torch.tensor([1.0, 0.0, 0.0]) for trip in trips]
    found = measured(halve, starts)
    assert found == {"mul": max(trips), "norm_gt": max(trips) + 1}


def test_recursion_on_computed_depth_needs_one_launch_per_level() -> None:
    """The leaf comes first in the program, and still waits until every instance is there."""

    @ps.function
    def descend(x: Tensor) -> Tensor:
        return ps.cond(
            x.norm() < 1.5, lambda: torch.sin(x), lambda: torch.cos(descend(torch.mul(x, 0.5)))
        )

    depths = [0, 3, 7, 1, 5]
    starts = [2.0**depth * torch.tensor([1.0, 0.0, 0.0]) for depth in depths]
    found = measured(descend, starts)
    assert found["sin"] == 1
    assert found["cos"] == max(depths)


#: Where in the body of the outer loop blocks stand: before, between and after two inner loops.
PLACES = {
    "before": (True, False, False),
    "between": (False, True, False),
    "after": (False, False, True),
    "before and after": (True, False, True),
    "everywhere": (True, True, True),
}


@pytest.mark.parametrize("place", PLACES)
def test_nested_loops_keep_the_outer_body_at_the_longest_outer_trip_count(place: str) -> None:
    before, between, after = PLACES[place]
    turn = weight()

    def inner(trips: Tensor, k: Any, x: Tensor) -> Tensor:
        return ps.while_loop(lambda j, x: j < trips[k], lambda j, x: (j + 1, torch.sin(x)), (0, x))[
            1
        ]

    @ps.function
    def nest(trips: Tensor, n: Any, x: Tensor) -> Tensor:
        def body(k: Any, x: Tensor) -> tuple[Any, Tensor]:
            x = inner(trips, k, torch.tanh(x) if before else x)
            x = inner(trips, k, torch.cos(x)) if between else x
            return k + 1, x @ turn if after else x

        return ps.while_loop(lambda k, x: k < n, body, (0, x))[1]

    outer = torch.randint(0, 8, (16,), generator=numbers(2))
    trips = torch.randint(0, 6, (16, 8), generator=numbers(3))
    found = counts(nest, trips, outer, vectors(16))
    wanted = {"tanh": before, "cos": between, "matmul": after}
    assert {name: found[name] for name in wanted} == {
        name: int(outer.max()) * there for name, there in wanted.items()
    }


def test_an_inner_loop_on_computed_values_keeps_the_outer_body_together() -> None:
    @ps.function
    def nest(n: Any, x: Tensor) -> Tensor:
        def body(k: Any, x: Tensor) -> tuple[Any, Tensor]:
            y = torch.tanh(x) * 8
            return k + 1, ps.while_loop(
                lambda y: y.norm() > 1, lambda y: (torch.div(y, 1.5),), (y,)
            )[0]

        return ps.while_loop(lambda k, x: k < n, body, (0, x))[1]

    assert measured(nest, [2, 3, 6, 0, 6, 5], vectors(6))["tanh_mul"] == 6


@pytest.mark.parametrize("is_block_first", [True, False])
def test_a_loop_in_a_tail_recursion_keeps_its_levels_together(is_block_first: bool) -> None:
    def inner(trips: Tensor, k: Any, x: Tensor) -> Tensor:
        return ps.while_loop(lambda j, x: j < trips[k], lambda j, x: (j + 1, torch.sin(x)), (0, x))[
            1
        ]

    @ps.function
    def descend(trips: Tensor, n: Any, x: Tensor) -> Tensor:
        def step() -> Tensor:
            y = inner(trips, n, torch.exp(x)) if is_block_first else torch.exp(inner(trips, n, x))
            return descend(trips, n - 1, y)

        return ps.cond(n <= 0, lambda: torch.tanh(x), step)

    depths = torch.randint(0, 8, (16,), generator=numbers(2))
    trips = torch.randint(0, 6, (16, 8), generator=numbers(3))
    found = counts(descend, trips, depths, vectors(16))
    assert (found["exp"], found["tanh"]) == (int(depths.max()), 1)


def test_call_sites_of_one_function_share_launches() -> None:
    turn = weight()

    @ps.function
    def step(x: Tensor) -> Tensor:
        return torch.tanh(x @ turn)

    @ps.function
    def both(x: Tensor, y: Tensor) -> Tensor:
        return step(x) + step(y)

    @ps.function
    def either(flag: Any, x: Tensor) -> Tensor:
        return ps.cond(flag, lambda: step(x), lambda: step(2 * x) - 1)

    assert counts(both, vectors(5), vectors(5))["matmul_tanh"] == 1
    assert counts(either, [True, False, True, True], vectors(4))["matmul_tanh"] == 1


def test_a_five_op_interpreter_beats_lock_step(capsys: pytest.CaptureFixture[str]) -> None:
    """64 random programs of 40 steps; lock step needs one launch per operation and step."""
    turn = weight()
    operations = [
        lambda x: x + 1,
        lambda x: x * 0.5,
        lambda x: torch.tanh(x @ turn),
        lambda x: torch.sin(x),
        lambda x: -x,
    ]

    @ps.function
    def interpret(code: Tensor, x: Tensor) -> Tensor:
        def step(k: Any, x: Tensor) -> tuple[Any, Tensor]:
            return k + 1, ps.switch(code[k], operations, (x,))

        return ps.while_loop(lambda k, x: k < code.shape[0], step, (0, x))[1]

    instances, steps = 64, 40
    code = torch.randint(0, 5, (instances, steps), generator=numbers(4))
    launches = sum(counts(interpret, code, vectors(instances)).values())
    with capsys.disabled():
        print(f"\nfive-op interpreter: {launches} launches, {5 * steps} in lock step, ", end="")
        print(f"{instances * steps} one by one")
    assert launches < 5 * steps
