"""Where values come from: what control flow only copies is the value that it copies."""

import pytest
import torch

import penstock as ps
from penstock.ir.graph import Call, Graph, Node, Pass
from penstock.passes.entry import wrap_entry
from penstock.passes.flow import analyse_flow
from tests.small_programs import SMALL

pytestmark = pytest.mark.usefixtures("interpreted_loops")


def nodes_of(graph: Graph, kind: type) -> list[Node]:
    return [n for c in graph.contexts for n in c.nodes if isinstance(n.operation, kind)]


def test_what_a_recursion_passes_on_unchanged_is_the_argument_of_the_entry():
    flow = analyse_flow(wrap_entry(SMALL["tree_recursion"]().program))
    main, encode = flow.program.functions
    roots = [flow.root(value) for value in encode.body.inputs]
    assert roots[:-1] == list(main.body.inputs[:-1])  # the tree
    assert roots[-1] is encode.body.inputs[-1]  # the node, which changes


def test_recursion_invariant_parameters_are_looked_up_and_not_stored():
    graph = SMALL["tree_recursion"]().graph
    encode = next(context for context in graph.contexts if context.name == "encode")
    assert [str(wire.type) for wire in encode.inputs] == ["int64[]"]
    for call in nodes_of(graph, Call):
        assert len(call.inputs) == 1
    read = {wire.input for node in encode.nodes for wire in node.inputs if wire.input is not None}
    assert read


def test_a_parameter_that_differs_between_callers_is_its_own():
    @ps.function
    def double(x):
        return x * 2

    @ps.function
    def twice(x, y):
        return double(x), double(y)

    flow = analyse_flow(twice.program(torch.ones(2), torch.ones(2)))
    (parameter,) = flow.program.function("double").body.inputs
    assert flow.root(parameter) is parameter
    assert len(flow.sites["double"]) == 2


def test_a_carried_value_that_the_body_returns_unchanged_is_no_input_of_the_loop():
    @ps.function
    def repeat(x, n):
        return ps.while_loop(
            lambda i, y, scale: i < n,
            lambda i, y, scale: (i + 1, y * scale, scale),
            (0, x, x),
        )[1:]

    graph = repeat.graph(torch.ones(2), 3)
    loop = next(context for context in graph.contexts if context.kind == "loop")
    assert [wire.home for wire in loop.inputs] == ["host", "slot"]
    assert len(loop.exits) == 1


def test_branches_that_return_one_value_need_no_switch():
    @ps.function
    def same(x, n):
        return ps.cond(n > 0, lambda: x, lambda: x)

    graph = same.graph(torch.ones(2), 3)
    assert [type(node.operation) for node in graph.contexts[0].nodes] == [Pass]


def test_a_function_that_returns_a_constant_is_not_called():
    @ps.function
    def nothing(x):
        return 0

    @ps.function
    def caller(x):
        return nothing(x)

    assert nodes_of(caller.graph(torch.ones(2)), Call) == []
    assert caller.map([torch.ones(2)] * 3) == [torch.tensor(0)] * 3


def test_a_recursive_entry_gets_a_caller_of_its_own():
    program = SMALL["tree_recursion"]().program
    assert [function.name for function in wrap_entry(program).functions] == [
        "encode.main",
        "encode",
    ]
    plain = SMALL["nested_loops"]().program
    assert wrap_entry(plain) is plain
