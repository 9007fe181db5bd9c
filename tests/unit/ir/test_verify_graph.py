"""Each rule of the verifier of graphs catches a graph that breaks it.

A broken graph is a small program's graph with one thing changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.ir.graph import (
    Block,
    Call,
    Compute,
    Context,
    Enter,
    Graph,
    Home,
    HostStep,
    Merge,
    Node,
    Operation,
    Pass,
    Primitive,
    Switch,
    Wire,
)
from penstock.ir.types import TensorType
from penstock.ir.verify import VerificationError
from penstock.ir.verify_graph import GRAPH_RULES, verify_graph
from tests.small_programs import SMALL

pytestmark = pytest.mark.usefixtures("interpreted_loops")

STRAY = Wire(999, TensorType("float32", (3,)), Home.SLOT, 0, 0)


def small(name: str) -> Graph:
    return SMALL[name]().graph


def with_context(graph: Graph, context: Context) -> Graph:
    contexts = list(graph.contexts)
    contexts[context.index] = context
    return replace(graph, contexts=tuple(contexts))


def with_node(
    graph: Graph, kind: type[Operation], change: Callable[[Node], Node], number: int = 0
) -> Graph:
    """The graph with one of the nodes of a kind changed."""
    found = [n for c in graph.contexts for n in c.nodes if isinstance(n.operation, kind)]
    old = found[number]
    context = graph.contexts[old.context]
    nodes = tuple(change(node) if node is old else node for node in context.nodes)
    return with_context(graph, replace(context, nodes=nodes))


def an_entry_that_is_called() -> Graph:
    call = lambda node: replace(node, operation=Call(0, 0))  # noqa: E731
    return with_node(small("tree_recursion"), Call, call)


def an_arm_without_a_switch() -> Graph:
    graph = small("switch_of_three")
    context = graph.contexts[0]
    return with_context(graph, replace(context, arms=(*context.arms, 0)))


def a_wire_without_a_maker() -> Graph:
    return with_node(
        small("nested_loops"), Block, lambda node: replace(node, inputs=(*node.inputs[1:], STRAY))
    )


def an_input_with_the_number_of_another() -> Graph:
    graph = small("nested_loops")
    return replace(graph, inputs=graph.inputs[::-1])


def a_wire_in_another_arm() -> Graph:
    return with_node(
        small("map_with_array"), Primitive, lambda node: replace(node, arm=0), number=4
    )


def a_wire_of_an_arm_that_rows_may_not_have_entered() -> Graph:
    graph = small("switch_of_three")
    (result,) = (n for n in graph.contexts[0].nodes if isinstance(n.operation, Merge))
    inside, context = result.inputs[0], graph.contexts[0]
    output = replace(inside, number=998, arm=0)
    copy = Node(Pass(), (inside,), (output,), 0, 0)
    return with_context(graph, replace(context, nodes=(*context.nodes, copy)))


def a_node_before_what_it_reads() -> Graph:
    graph = small("map_with_array")
    context = graph.contexts[0]
    return with_context(graph, replace(context, nodes=context.nodes[::-1]))


def a_merge_without_one_of_the_arms() -> Graph:
    return with_node(
        small("switch_of_three"), Merge, lambda node: replace(node, inputs=node.inputs[:2])
    )


def an_exit_from_the_body() -> Graph:
    graph = small("nested_loops")
    loop = graph.contexts[1]
    return with_context(graph, replace(loop, exits=loop.outputs[1:]))


def an_invariant_that_is_not_listed() -> Graph:
    return with_node(
        small("nested_loops"),
        Enter,
        lambda node: replace(node, inputs=node.inputs[:-1]),
        number=1,
    )


def an_argument_of_another_type() -> Graph:
    def swap(node: Node) -> Node:
        assert isinstance(node.operation, Enter)
        first, second, *rest = node.inputs
        return replace(node, inputs=(second, first, *rest))

    return with_node(small("nested_loops"), Enter, swap)


def a_switch_on_data() -> Graph:
    graph = small("data_dependent_loop")
    switch = next(n for n in graph.contexts[1].nodes if isinstance(n.operation, Switch))
    data = graph.contexts[1].inputs[0]
    assert data.home is Home.SLOT
    return with_node(graph, Switch, lambda node: replace(switch, inputs=(data,)))


def a_computation_of_what_it_does_not_have() -> Graph:
    def break_step(node: Node) -> Node:
        assert isinstance(node.operation, Compute)
        steps = (HostStep("neg", (STRAY,), node.outputs[0]),)
        return replace(node, operation=Compute(steps))

    return with_node(small("nested_loops"), Compute, break_step)


def a_block_with_a_parameter_too_few() -> Graph:
    def drop(node: Node) -> Node:
        assert isinstance(node.operation, Block)
        return replace(
            node, operation=replace(node.operation, parameters=node.operation.parameters[1:])
        )

    return with_node(small("nested_loops"), Block, drop)


def a_block_that_returns_its_parameter() -> Graph:
    def echo(node: Node) -> Node:
        assert isinstance(node.operation, Block)
        return replace(node, operation=replace(node.operation, nodes=()))

    return with_node(small("nested_loops"), Block, echo)


def a_uniform_value_that_depends_on_data() -> Graph:
    graph = small("switch_of_three")
    data = graph.inputs[0].slot
    assert data is not None
    uniform = replace(graph.uniforms[0], inputs=(data,))
    return replace(graph, uniforms=(uniform,))


BROKEN = {
    "contexts nest as their openers do": an_entry_that_is_called,
    "every arm is opened by one Switch": an_arm_without_a_switch,
    "every wire has one maker": a_wire_without_a_maker,
    "inputs are numbered as they are listed": an_input_with_the_number_of_another,
    "a wire is where its maker is": a_wire_in_another_arm,
    "a wire is read where it can be seen": a_wire_of_an_arm_that_rows_may_not_have_entered,
    "a wire is made before it is read": a_node_before_what_it_reads,
    "a Merge takes one wire of each arm of a Switch": a_merge_without_one_of_the_arms,
    "what leaves a context is made in the arm that it leaves from": an_exit_from_the_body,
    "an inner context lists what it reads from outside": an_invariant_that_is_not_listed,
    "copies agree in number, home and type": an_argument_of_another_type,
    "wires are at home where a node takes or makes them": a_switch_on_data,
    "a computation reads what it has and makes what it returns": (
        a_computation_of_what_it_does_not_have
    ),
    "the parameters and results of a block match its wires": a_block_with_a_parameter_too_few,
    "a block is a straight line that makes its results": a_block_that_returns_its_parameter,
    "uniform computations come in order": a_uniform_value_that_depends_on_data,
}


def test_every_rule_has_a_graph_that_breaks_it():
    assert list(BROKEN) == list(GRAPH_RULES)


@pytest.mark.parametrize("rule", BROKEN)
def test_a_graph_that_breaks_a_rule_is_caught(rule):
    with pytest.raises(VerificationError) as caught:
        verify_graph(BROKEN[rule]())
    assert caught.value.rule == rule


@pytest.mark.parametrize("name", SMALL)
def test_graphs_of_small_programs_keep_all_rules(name):
    verify_graph(small(name))


def test_every_array_operation_has_its_homes():
    names = {
        node.operation.name
        for build in SMALL.values()
        for context in build().graph.contexts
        for node in context.nodes
        if isinstance(node.operation, Primitive)
    }
    assert {"ArrayNew", "ArrayWrite", "ArrayStack", "Element", "Size"} <= names
