"""Placed programs have the values and gradients of plain Python, whatever the speed of devices."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import penstock as ps
from penstock.calls.structure import flatten
from tests.placed_programs import PLACED, Placed, loop_across_devices
from tests.placing import slow_device

SPEEDS: dict[str, Any] = {
    "alike": nullcontext,
    "second slow": lambda: slow_device(1),
    "first slow": lambda: slow_device(0),
}


def scalar(outputs: Any) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    leaves = flatten(outputs)[0]
    weights = [torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype) for leaf in leaves]
    return sum((leaf * weight).sum() for leaf, weight in zip(leaves, weights, strict=True))


def gradients(made: Placed, outputs: Any, *, twice: bool) -> list[Tensor | None]:
    total = scalar(outputs)
    if not twice:
        return list(torch.autograd.grad(total, made.tensors, allow_unused=True))
    first = torch.autograd.grad(total, made.tensors, allow_unused=True, create_graph=True)
    square = sum((grad * grad).sum() for grad in first if grad is not None)
    return list(torch.autograd.grad(square, made.tensors, allow_unused=True))


def run_eagerly(made: Placed) -> list[Any]:
    with ps.set_eager(True):
        return [made.function(*instance) for instance in made.instances]


def assert_same(actual: list[Tensor | None], expected: list[Tensor | None], *, is_strict: bool):
    for one, other in zip(actual, expected, strict=True):
        if other is None:
            assert one is None or (not is_strict and not one.any())
        else:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("name", PLACED)
def test_values_and_gradients_equal_plain_python(name, speed):
    made = PLACED[name]()
    with SPEEDS[speed]():
        outputs = made.function.map(*made.columns)
        found = gradients(made, outputs, twice=False)
    plain = run_eagerly(made)
    assert_same(flatten(outputs)[0], flatten(plain)[0], is_strict=True)
    assert_same(found, gradients(made, plain, twice=False), is_strict=True)


@pytest.mark.parametrize("name", PLACED)
def test_every_memory_policy_gives_the_same_gradients(name):
    made = PLACED[name]()
    expected = gradients(made, made.function.map(*made.columns), twice=False)
    for policy, budget in (("swap", 100), ("recompute", 100), ("recompute", 800), ("auto", 200)):
        with slow_device(1), ps.memory(policy, budget=budget):
            outputs = made.function.map(*made.columns)
        found = gradients(made, outputs, twice=False)
        assert_same(found, expected, is_strict=True)


@pytest.mark.parametrize("name", PLACED)
def test_second_gradients_equal_plain_python(name):
    made = PLACED[name]()
    found = gradients(made, made.function.map(*made.columns), twice=True)
    expected = gradients(made, run_eagerly(made), twice=True)
    assert_same(found, expected, is_strict=False)


def test_results_do_not_depend_on_speed_to_the_last_bit():
    found = []
    for speed in SPEEDS.values():
        made = loop_across_devices()
        with speed():
            outputs = made.function.map(*made.columns)
            found.append([*outputs, *gradients(made, outputs, twice=False)])
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            assert torch.equal(one, same)


def test_instances_can_go_backward_one_by_one():
    made = loop_across_devices()
    outputs = made.function.map(*made.columns)
    for weight in made.weights:
        weight.grad = None
    for output in outputs:
        output.sum().backward()
    found = [weight.grad for weight in made.weights]
    total = sum(output.sum() for output in run_eagerly(made))
    assert_same(found, list(torch.autograd.grad(total, made.weights)), is_strict=True)


def test_a_graph_that_is_kept_can_be_gone_through_again():
    made = loop_across_devices()
    total = scalar(made.function.map(*made.columns))
    first = torch.autograd.grad(total, made.tensors, retain_graph=True)
    second = torch.autograd.grad(total, made.tensors)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_a_weight_that_two_devices_use_gets_both_gradients():
    (weight,) = [torch.eye(3, dtype=torch.float64).requires_grad_()]

    @ps.function
    def shared(x):
        with ps.device("cpu:0"):
            x = torch.sin(x @ weight)
        with ps.device("cpu:1"):
            return torch.cos(x @ weight)

    xs = torch.ones(4, 3, dtype=torch.float64)
    (found,) = torch.autograd.grad(shared.map(xs, out="stack").sum(), [weight])
    (expected,) = torch.autograd.grad(torch.cos(torch.sin(xs @ weight) @ weight).sum(), [weight])
    torch.testing.assert_close(found, expected)


def test_random_calls_draw_the_same_wherever_they_run():
    @ps.function
    def program(x, n):
        def body(i, x):
            with ps.device("cpu:0"):
                x = torch.nn.functional.dropout(torch.sin(x), 0.5)
            with ps.device("cpu:1"):
                return i + 1, x + torch.rand(3, dtype=torch.float64)

        return ps.while_loop(lambda i, x: i < n, body, (0, x))[1]

    columns = [torch.ones(4, 3, dtype=torch.float64), [3, 0, 2, 5]]
    found = []
    for is_eager in (False, True):
        torch.manual_seed(5)
        with ps.set_eager(is_eager):
            found.append(torch.stack(program.map(*columns)))
    torch.testing.assert_close(*found)
