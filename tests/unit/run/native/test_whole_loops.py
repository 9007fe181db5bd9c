"""Loops that devices run as a whole, run by Python: values, what qualifies, doing without."""

import logging

import pytest
import torch

import penstock as ps
from penstock.run import whole_loops
from penstock.run.native import device_block, while_nodes, whole_block
from tests.semantics.agreement import assert_agree
from tests.semantics.programs import PROGRAMS
from tests.semantics.ways import run_map, run_plain
from tests.whole_loops_in_python import whole_loops_in_python


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", ["fixed_point", "loop_on_an_untaken_branch"])
def test_programs_of_the_table_agree_with_plain_python(name):
    case = PROGRAMS[name].case(torch.float64)
    with whole_loops_in_python() as made:
        actual = run_map(case)
    assert made
    for number, (left, right) in enumerate(zip(actual, run_plain(case), strict=True)):
        assert_agree(left, right, f"instance {number}")


def make_halving(weight):
    @ps.function
    def halve(x, limit):
        while x.abs().amax() > limit:
            x = x @ weight
        return x

    return halve


def halved(x, limit, weight):
    while x.abs().amax() > limit:
        x = x @ weight
    return x


def test_a_loop_is_one_launch_and_rows_that_are_done_keep_what_they_have():
    weight = 0.5 * torch.eye(20)
    x, limit = torch.randn(6, 20), torch.tensor([9.0, 0.5, 0.1, 1e-3, 0.2, 0.7])
    halve = make_halving(weight)
    with whole_loops_in_python() as made:
        actual = halve.map(x, limit, out="stack")
        with ps.profile() as run:
            halve.map(x, limit)
    for row, expected in zip(actual, zip(x, limit)):
        torch.testing.assert_close(row, halved(*expected, weight))
    assert len(made) == 1
    assert len(run.launches) == 1


def test_a_graph_serves_the_same_number_of_rows_and_weights_where_they_were():
    weight = 0.5 * torch.eye(20)
    halve, limit = make_halving(weight), torch.tensor(0.1)
    with whole_loops_in_python() as made:
        for x in torch.randn(3, 20):
            torch.testing.assert_close(halve(x, limit), halved(x, limit, weight))
        assert len(made) == 1
        x = torch.randn(4, 20)
        assert len(halve.map(x, [0.1] * 4)) == 4
        assert len(made) == 2
        weight.copy_(0.25 * torch.eye(20))
        torch.testing.assert_close(halve(x[0], limit), halved(x[0], limit, weight))
        assert len(made) == 2


def test_the_number_of_iterations_is_bounded():
    @ps.function
    def grow(x):
        return ps.while_loop(lambda x: x.sum() < 1e6, lambda x: x * 2, x, maximum_iterations=3)

    with whole_loops_in_python() as made:
        actual = grow.map(torch.stack([torch.ones(20), torch.full((20,), 1e6)]), out="stack")
    assert made
    assert actual[:, 0].tolist() == [8.0, 1e6]


def test_counters_and_what_follows_the_loop_are_as_always():
    @ps.function
    def program(x):
        i = 0
        while x.sum() < 100:
            x, i = x + i, i + 1
        return i if i > 3 else -i, x * i

    columns = torch.stack([torch.zeros(20), torch.full((20,), 4.0), torch.full((20,), 9.0)])
    with ps.set_eager(True):
        expected = [program(x) for x in columns]
    with whole_loops_in_python():
        actual = program.map(columns)
    for number, (left, right) in enumerate(zip(actual, expected, strict=True)):
        assert_agree(left, right, f"instance {number}")


@pytest.mark.parametrize(
    "step",
    [
        lambda x, i: x + torch.rand(()),
        lambda x, i: x + x[i],
        lambda x, i: x.sort().values + 1,
        lambda x, i: x + (torch.arange(20) // (i + 1)),
    ],
    ids=["random numbers", "indices", "other operations", "whole divisions"],
)
def test_other_loops_stay_with_the_planner(step):
    @ps.function
    def program(x, i):
        while x.sum() < 50:
            x = step(x, i)
        return x

    with whole_loops_in_python() as made:
        program(torch.ones(20), 3)
    assert not made


def test_loops_that_the_host_can_count_stay_with_the_planner():
    @ps.function
    def program(x, n):
        for _ in range(n):
            x = x * 2
        return x

    with whole_loops_in_python() as made:
        program(torch.ones(20), 3)
    assert not made


def test_a_call_that_asks_for_gradients_leaves_a_tape():
    weight = (0.5 * torch.eye(20)).requires_grad_()
    halve = make_halving(weight)
    with torch.enable_grad(), whole_loops_in_python() as made:
        halve(torch.ones(20), torch.tensor(0.3)).sum().backward()
    assert not made
    assert weight.grad is not None


def test_loops_that_move_much_run_by_torch_calls(monkeypatch):
    monkeypatch.setattr(whole_block, "MOST_ELEMENTS", 50)
    weight, x = 0.5 * torch.eye(20), torch.randn(3, 20)
    with whole_loops_in_python() as made:
        actual = make_halving(weight).map(x, [0.1, 5.0, 0.01], out="stack")
    assert not made
    for row, given, limit in zip(actual, x, [0.1, 5.0, 0.01]):
        torch.testing.assert_close(row, halved(given, limit, weight))


def test_where_a_graph_fails_torch_calls_run_and_one_line_says_so(monkeypatch, caplog):
    def refuse(*arguments):
        raise RuntimeError("cuGraphAddNode: CUDA_ERROR_NOT_SUPPORTED")

    device_block._say_what_failed.cache_clear()
    weight, x = 0.5 * torch.eye(20), torch.randn(20)
    with whole_loops_in_python():
        monkeypatch.setattr(whole_block, "WhileGraph", refuse)
        halve = make_halving(weight)
        for limit in torch.tensor([0.1, 0.2]):
            torch.testing.assert_close(halve(x, limit), halved(x, limit, weight))
    assert [record.message for record in caplog.records] == [
        "a loop on a CUDA device runs by torch calls, without a WHILE node: "
        "RuntimeError: cuGraphAddNode: CUDA_ERROR_NOT_SUPPORTED"
    ]


def test_without_bindings_the_planner_runs_the_loop_and_one_line_says_so(monkeypatch, caplog):
    whole_loops._say_what_is_missing.cache_clear()
    with whole_loops_in_python() as made, caplog.at_level(logging.WARNING, "penstock"):
        monkeypatch.setattr(whole_loops, "has_while_nodes", lambda: False)
        halve = make_halving(0.5 * torch.eye(20))
        assert halve(torch.ones(20), torch.tensor(0.3))[0] == 0.25
        halve(torch.ones(20), torch.tensor(0.3))
    assert not made
    assert [record.message for record in caplog.records] == [
        "the host reads the conditions of loops on CUDA devices: pip install cuda-bindings runs "
        "such loops as CUDA graphs"
    ]


def test_looking_for_bindings_raises_nothing_where_there_are_none():
    assert while_nodes.has_while_nodes() in (False, True)
