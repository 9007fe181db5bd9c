"""Ranks: what feeds is below what is fed, cycles are below what follows them, arms are level."""

import pytest
import torch

import penstock as ps
from penstock.ir.graph import Block, Read
from penstock.passes.rank import rank_nodes
from penstock.plan.components import find_components
from tests.small_programs import SMALL

pytestmark = pytest.mark.usefixtures("interpreted_loops")


def ranks_of(graph) -> dict[str, int]:
    """The ranks of blocks by their operations, and of read-backs."""
    found = {}
    for node, rank in rank_nodes(graph).items():
        if isinstance(node.operation, Block):
            found[node.operation.name.split(":")[1]] = rank
        elif isinstance(node.operation, Read):
            found["read"] = rank
    return found


def test_a_leaf_is_below_the_cell_that_takes_it():
    ranks = ranks_of(SMALL["tree_recursion"]().graph)
    assert ranks["embedding"] < ranks["cat_linear_tanh"]


def test_an_inner_loop_is_below_what_follows_it():
    ranks = ranks_of(SMALL["nested_loops"]().graph)
    assert ranks["mul_add"] < ranks["sin"]


def test_an_inner_loop_is_below_what_the_outer_body_does_before_it():
    """So it drains before any row starts the next iteration of the outer loop."""

    @ps.function
    def nest(x, n):
        def body(i, y):
            y = torch.tanh(y)
            inner = ps.while_loop(lambda j, z: j < i, lambda j, z: (j + 1, z.exp()), (0, y))[1]
            return i + 1, torch.sin(inner)

        return torch.cos(ps.while_loop(lambda i, y: i < n, body, (0, x))[1])

    ranks = ranks_of(nest.graph(torch.ones(2), 3))
    assert ranks["exp"] < ranks["tanh"] < ranks["sin"] < ranks["cos"]


def test_a_loop_is_below_what_follows_it_and_above_what_comes_first():
    @ps.function
    def chain(x, n):
        x = torch.sin(x)
        x = ps.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, torch.exp(y)), (0, x))[1]
        return torch.cos(x)

    ranks = ranks_of(chain.graph(torch.ones(2), 3))
    assert ranks["sin"] < ranks["exp"] < ranks["cos"]


def test_exclusive_branches_have_equal_ranks():
    @ps.function
    def choose(x, k):
        x = torch.exp(x)
        y = ps.switch(k, [lambda: torch.sin(x), lambda: torch.cos(x), lambda: torch.tan(x[[1, 0]])])
        return torch.tanh(y)

    ranks = ranks_of(choose.graph(torch.ones(2), 1))
    arms = {ranks["sin"], ranks["cos"], ranks["getitem_tan"]}
    assert len(arms) == 1
    assert ranks["exp"] < arms.pop() < ranks["tanh"]


def test_a_leaf_waits_for_a_descent_that_computed_values_decide_on():
    @ps.function
    def descend(x):
        return ps.cond(
            x.norm() < 1.5, lambda: torch.sin(x), lambda: torch.cos(descend(torch.mul(x, 0.5)))
        )

    ranks = ranks_of(descend.graph(torch.ones(2)))
    assert max(ranks["norm_lt"], ranks["read"], ranks["mul"]) < ranks["sin"] < ranks["cos"]


def test_a_read_back_is_above_the_block_that_computes_the_value():
    ranks = ranks_of(SMALL["data_dependent_loop"]().graph)
    assert ranks["mul_sub_norm"] < ranks["read"] < ranks["div_add_div"]


def test_a_function_may_take_what_another_call_of_it_returns():
    @ps.function
    def step(x):
        return torch.sin(x)

    @ps.function
    def twice(x):
        return torch.cos(step(step(x)))

    ranks = ranks_of(twice.graph(torch.ones(2)))
    assert ranks["sin"] < ranks["cos"]


def test_ranks_do_not_depend_on_when_a_graph_was_made():
    build = SMALL["tree_recursion"]
    assert list(rank_nodes(build().graph).values()) == list(rank_nodes(build().graph).values())


def test_components_come_in_order():
    successors = {1: [2], 2: [3, 4], 3: [1], 4: [5, 6], 5: [4], 6: [6]}
    found = find_components(range(1, 7), successors)
    assert [sorted(component) for component in found] == [[1, 2, 3], [4, 5], [6]]


def test_a_long_chain_does_not_nest():
    count = 20_000
    successors = {number: [number + 1] for number in range(count)}
    assert len(find_components(range(count), successors)) == count
