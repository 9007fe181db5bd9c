"""A straight-line program as one block: what its inputs are, and where results come from."""

import pytest
import torch

import penstock as ps
from penstock.ir.graph import Block, Home
from penstock.ir.program import Captured, Constant, TorchCall
from penstock.passes.unit_block import Given, Kept, Made, obstacle, unit_block
from penstock.run.blocks import RunnableBlock

WEIGHT = torch.randn(3, 3)


def block_of(function, *args):
    return unit_block(ps.function(function).program(*args))


def calls_of(unit):
    assert isinstance(unit.node.operation, Block)
    return [n.operation.name.rsplit(".", 1)[-1] for n in unit.node.operation.nodes]


def test_parameters_are_slots_and_captures_are_uniform():
    unit = block_of(lambda x, y: (x @ WEIGHT + y).tanh(), torch.ones(3), torch.ones(3))
    assert [wire.home for wire in unit.node.inputs] == [Home.SLOT, Home.SLOT, Home.UNIFORM]
    assert unit.parameters == (0, 1)
    assert [uniform.operation for uniform in unit.uniforms] == [Captured(0)]
    assert unit.results == (Made(0),)


def test_the_block_computes_what_the_program_does():
    unit = block_of(lambda x, y: (x @ WEIGHT + y).tanh(), torch.ones(3), torch.ones(3))
    x, y = torch.randn(3), torch.randn(3)
    (found,) = RunnableBlock(unit.node).function(x, y, WEIGHT)
    assert torch.equal(found, (x @ WEIGHT + y).tanh())


def test_what_is_computed_twice_is_computed_once():
    unit = block_of(lambda x: x.sin() + x.sin(), torch.ones(3))
    assert calls_of(unit) == ["sin", "add"]


def test_what_nobody_uses_is_left_out():
    def function(x, y):
        y.exp()
        return x.sin()

    unit = block_of(function, torch.ones(3), torch.ones(3))
    assert calls_of(unit) == ["sin"]
    assert unit.parameters == (0,)


def test_arguments_and_captures_that_are_returned_are_not_computed():
    unit = block_of(lambda x, y: (y, x.sin(), WEIGHT, y), torch.ones(3), torch.ones(2))
    assert unit.results == (Given(1), Made(0), Kept(0), Given(1))
    assert unit.parameters == (0,)


def test_a_program_that_computes_nothing_has_no_node():
    unit = block_of(lambda x: x, torch.ones(3))
    assert unit.node is None
    assert unit.results == (Given(0),)


def test_results_that_are_one_value_are_one_output():
    unit = block_of(lambda x: (x.sin(), x.sin()), torch.ones(3))
    assert unit.results == (Made(0), Made(0))
    assert len(unit.node.outputs) == 1


def test_constants_are_uniform():
    unit = block_of(lambda x: x + torch.tensor(2.0), torch.ones(3))
    assert [uniform.operation for uniform in unit.uniforms] == [Constant(2.0)]


def test_keys_are_numbered_in_the_order_of_the_draws():
    def function(x):
        torch.rand_like(x)
        second = torch.rand_like(x)
        third = torch.randn_like(x)
        return third * second

    unit = block_of(function, torch.ones(3))
    assert unit.draws == 3
    assert unit.keys == (1, 2)
    homes = [wire.home for wire in unit.node.inputs]
    assert homes == [Home.SLOT] * len(unit.parameters) + [Home.HOST] * 2


def test_calls_of_straight_line_functions_are_written_out():
    @ps.function
    def inner(x, y):
        return x * WEIGHT[0] + torch.rand_like(y)

    unit = block_of(lambda x: inner(inner(x, x), x), torch.ones(3))
    assert unit.draws == 2
    assert unit.keys == (0, 1)
    assert all(isinstance(n.operation, TorchCall) for n in unit.node.operation.nodes)
    assert [uniform.operation for uniform in unit.uniforms] == [Captured(0)]


def test_an_element_at_a_computed_place_is_data():
    program = ps.function(lambda x, i: x.sin()[i]).program(torch.ones(4, 2), torch.tensor(1))
    assert obstacle(program) is None
    x = torch.randn(4, 2)
    (found,) = RunnableBlock(unit_block(program).node).function(x, torch.tensor(2))
    assert torch.equal(found, x.sin()[2])


def branching(x):
    return ps.cond(x.sum() > 0, lambda: x, lambda: -x)


def looping(x):
    return ps.while_loop(lambda y: y.sum() < 9, lambda y: (y + 1,), (x,))[0]


def with_an_array(x):
    return ps.TensorArray(2).write(0, x).write(1, x).stack()


def recursive(n):
    return ps.cond(n > 0, lambda: again(n - 1), lambda: n)


again = ps.function(recursive)


@pytest.mark.parametrize(
    ("function", "argument", "reason"),
    [
        (branching, torch.ones(3), "control flow"),
        (looping, torch.ones(3), "control flow"),
        (with_an_array, torch.ones(3), "TensorArray"),
        (lambda x: x.new_zeros(x.shape[0]) * x.shape[0], torch.ones(3), "unknown size"),
        (again, torch.tensor(3), "control flow"),
    ],
)
def test_other_programs_are_refused_with_a_reason(function, argument, reason):
    made = function if isinstance(function, type(again)) else ps.function(function)
    program = made.program(argument)
    assert unit_block(program) is None
    assert reason in obstacle(program)
