"""`ps.device` in traced code, in converted code and in plain Python."""

from __future__ import annotations

import threading

import pytest
import torch

import penstock as ps
from penstock.errors import ArgumentError, LoopTypeError

X = torch.ones(2)


def test_outside_of_programs_a_cpu_device_or_a_rank_changes_nothing():
    for name in ("cpu:1", "rank:3", "rank:1/cpu:2"):
        with ps.device(name):
            assert torch.equal(torch.sin(X), X.sin())
            assert torch.zeros(2).device.type == "cpu"


def test_eager_programs_ignore_it():
    @ps.function
    def program(x):
        with ps.device("cpu:1"):
            return torch.sin(x)

    with ps.set_eager(True):
        assert torch.equal(program(X), X.sin())


def test_eager_code_that_is_recorded_ignores_it():
    def program(x):
        with ps.device("cpu:1"):
            return torch.sin(x)

    (found,) = ps.map(program, [X])
    assert torch.equal(found, X.sin())


def test_converted_branches_loops_and_returns_keep_their_device():
    @ps.function
    def program(x, n):
        with ps.device("cpu:1"):
            if n > 3:
                return torch.sin(x)
            for _ in range(n):
                x = torch.cos(x)
            while x.sum() > 100:
                x = x / 2
        return torch.tanh(x)

    text = str(program.program(X, 2))
    for line in text.splitlines():
        if "torch.sin" in line or "torch.cos" in line or "div" in line:
            assert line.endswith("on cpu:1")
        if "tanh" in line:
            assert "cpu:1" not in line
    assert torch.equal(program(X, 2), torch.tanh(torch.cos(torch.cos(X))))
    assert torch.equal(program(X, 5), torch.sin(X))


def test_a_function_is_traced_for_each_device_that_calls_it():
    @ps.function
    def helper(x):
        return torch.sin(x)

    @ps.function
    def program(x):
        with ps.device("cpu:0"):
            x = helper(x)
        with ps.device("cpu:1"):
            return helper(x)

    text = str(program.program(X))
    assert text.count("torch.sin") == 2
    assert "on cpu:0" in text
    assert torch.equal(program(X), X.sin().sin())


def test_a_call_inside_a_device_is_another_trace_than_one_outside():
    @ps.function
    def program(x):
        return torch.sin(x)

    assert "cpu:1" not in str(program.program(X))
    with ps.device("cpu:1"):
        assert "on cpu:1" in str(program.program(X))
        assert torch.equal(program(X), X.sin())
    assert "cpu:1" not in str(program.program(X))


def test_nested_devices_and_their_ends():
    outer = ps.device("rank:1")

    @ps.function
    def program(x):
        with outer:
            x = torch.sin(x)
            with ps.device("cpu:2"):
                x = torch.cos(x)
            with outer:
                x = torch.exp(x)
            x = torch.tanh(x)
        return torch.sigmoid(x)

    places = {
        line.split("torch.")[1].split("(")[0]: line.partition(" on ")[2]
        for line in str(program.program(X)).splitlines()
        if "torch." in line
    }
    expected = {"sin": "rank:1", "cos": "rank:1/cpu:2", "exp": "rank:1", "tanh": "rank:1"}
    assert places == {**expected, "sigmoid": ""}


def test_a_device_ends_where_an_error_leaves_it():
    try:
        with ps.device("cpu:1"):
            raise ValueError
    except ValueError:
        pass

    @ps.function
    def program(x):
        return torch.sin(x)

    assert "cpu:1" not in str(program.program(X))


def test_a_device_holds_on_its_own_thread_only():
    found = []

    @ps.function
    def program(x):
        return torch.sin(x)

    with ps.device("cpu:1"):
        thread = threading.Thread(target=lambda: found.append(str(program.program(X))))
        thread.start()
        thread.join()
    assert "cpu:1" not in found[0]


def test_a_truth_value_of_the_host_follows_that_of_the_other_branch_to_its_device():
    @ps.function
    def program(x):
        is_done = x.to("meta").sum() > 0
        if x.sum() > 0:
            is_done = True
        return is_done

    text = str(program.program(torch.ones(2)))
    assert "bool[] on meta = branch" in text
    assert "bool[] on meta = torch.Tensor.to(%7, device(type='meta'))" in text


def test_a_device_that_is_not_there_is_refused_with_the_line():
    @ps.function
    def program(x):
        with ps.device("cuda:99"):
            return torch.sin(x)

    assert "cuda:99" in str(program.graph(X))  # it can be looked at
    with pytest.raises(ArgumentError, match="placed on a device that is not there") as caught:
        program.map([X, X])
    assert "test_device.py" in str(caught.value)
    assert "placed on  cuda:99" in str(caught.value)


def test_numbers_of_the_host_follow_what_a_loop_returns_to_its_device():
    @ps.function
    def program(x):
        y = x.to("meta")
        total, count = 0.0, 0
        for i in range(x.shape[0]):
            total = total + y[i]
            count = count + 1
        return total, count

    text = str(program.program(torch.ones(2)))
    assert "float32[] on meta = torch.Tensor.to(%4, device(type='meta'))" in text
    assert "float32[] on meta, %9: int64[] = loop" in text


def test_a_number_that_a_body_returns_follows_the_carried_value_to_its_device():
    @ps.function
    def program(x):
        start = x.to("meta").sum()
        return ps.while_loop(lambda t, i: i < 3, lambda t, i: (0.0, i + 1), (start, 0))[0]

    text = str(program.program(torch.ones(2)))
    assert "float32[] on meta, %5: int64[] = loop" in text
    assert "float32[] on meta = torch.Tensor.to(%12, device(type='meta'))" in text


@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_number_of_a_branch_follows_that_of_the_other_to_its_device(is_swapped):
    @ps.function
    def program(x):
        branches = [lambda: x.to("meta").sum(), lambda: 0.0]
        return ps.cond(x.sum() > 0, *(branches[::-1] if is_swapped else branches))

    text = str(program.program(torch.ones(2)))
    assert "float32[] on meta = branch" in text
    assert text.count("device(type='meta')") == 1


def test_tensors_of_floating_point_numbers_stay_where_they_are():
    @ps.function
    def program(x):
        return ps.while_loop(lambda t, i: i < 3, lambda t, i: (x.to("meta"), i + 1), (x, 0))[0]

    with pytest.raises(LoopTypeError, match=r"float32\[2\] on meta"):
        program.program(torch.ones(2))
