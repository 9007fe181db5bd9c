"""Which loops get windows, how wide these are, and that what they compute is one block."""

import pytest
import torch

import penstock as ps
from penstock.ir.graph import Block
from penstock.ir.program import Loop
from penstock.passes.pipeline import program_to_graph
from penstock.passes.windows import MOST_CALLS, WINDOW, open_windows

ROWS = torch.randn(5, 3)


def counted(body, test=lambda i, n: i < n, step=1, state=None, **options):
    """A loop over a counter and a state."""

    @ps.function
    def program(rows):
        n = rows.shape[0]
        first = (torch.tensor(0), rows[0] if state is None else state)
        return ps.while_loop(
            lambda i, x: test(i, n), lambda i, x: (i + step, body(i, x, rows)), first, **options
        )[1]

    return program


def loops_of(program):
    nodes = (node for function in program.functions for node in function.body.walk())
    return [node.operation for node in nodes if isinstance(node.operation, Loop)]


def windows_in(function, *arguments):
    """How many loops the program gets."""
    program = function.program(*(arguments or (ROWS,)))
    return len(loops_of(open_windows(program))) - len(loops_of(program))


def add_row(i, x, rows):
    return torch.tanh(x + rows[i])


@pytest.mark.parametrize(
    "test", [lambda i, n: i < n, lambda i, n: i <= n - 2, lambda i, n: n > i, lambda i, n: i < 4]
)
def test_a_counter_below_a_bound_gets_windows(test):
    assert windows_in(counted(add_row, test)) == 1


@pytest.mark.parametrize(
    "function",
    [
        counted(add_row, step=2),
        counted(add_row, lambda i, n: i != n),
        counted(add_row, maximum_iterations=3),
        counted(add_row, parallel_iterations=2),
        counted(lambda i, x, rows: ps.cond(i > 1, torch.sin, torch.cos, (x,))),
        counted(lambda i, x, rows: x + torch.rand(3)),
        counted(lambda i, x, rows: x, lambda i, n: (i < n) & (i < 3)),
    ],
    ids=["steps of two", "unequal", "limited", "in flight", "branch", "random", "two bounds"],
)
def test_other_loops_do_not(function):
    program = function.program(ROWS)
    assert len(loops_of(program)) == 1
    assert open_windows(program) is program


def test_a_bound_that_the_loop_changes_gets_none():
    @ps.function
    def program(x):
        def body(i, n, x):
            return i + 1, n - 1, torch.sin(x)

        first = (torch.tensor(0), torch.tensor(9), x)
        return ps.while_loop(lambda i, n, x: i < n, body, first)[2]

    assert windows_in(program) == 0


def test_a_window_is_one_block_and_what_is_left_another():
    graph = program_to_graph(counted(add_row).program(ROWS), opens_windows=True)
    loops = [context for context in graph.contexts if context.kind == "loop"]
    sizes = [
        [len(node.operation.nodes) for node in loop.nodes if isinstance(node.operation, Block)]
        for loop in loops
    ]
    assert sizes == [[2 * WINDOW], [2]]


def test_long_bodies_get_narrow_windows_and_very_long_ones_none():
    def long(calls):
        def body(i, x, rows):
            for _ in range(calls):
                x = torch.sin(x)
            return x

        return counted(body)

    graph = program_to_graph(long(MOST_CALLS // 3).program(ROWS), opens_windows=True)
    widest = max(
        len(node.operation.nodes)
        for context in graph.contexts
        for node in context.nodes
        if isinstance(node.operation, Block)
    )
    assert MOST_CALLS // 2 < widest <= MOST_CALLS
    assert windows_in(long(MOST_CALLS)) == 0
