"""Where steps run that nobody has placed."""

from __future__ import annotations

import torch

import penstock as ps
from penstock.ir.devices import Device
from penstock.ir.program import Captured, Node, Program, TorchCall
from penstock.passes.place import place_nodes


def devices(function, *args) -> dict[str, str]:
    """The device of each torch call, by its name."""
    placed = place_nodes(function.program(*args))
    nodes = [node for part in placed.functions for node in part.body.walk()]
    return {
        node.operation.name.rsplit(".", 1)[-1]: str(node.device)
        for node in nodes
        if isinstance(node.operation, TorchCall)
    }


X = torch.ones(2)


def test_a_program_that_nobody_has_placed_is_left_alone():
    @ps.function
    def program(x):
        return torch.sin(x)

    made = program.program(X)
    assert place_nodes(made) is made


def test_a_step_follows_the_first_that_reads_it():
    @ps.function
    def program(x):
        y = torch.sin(x)
        with ps.device("cpu:1"):
            a = torch.cos(y)
        with ps.device("cpu:2"):
            return torch.tanh(y) + a

    assert devices(program, X)["sin"] == "cpu:1"


def test_a_step_follows_its_readers_through_branches_loops_and_calls():
    @ps.function
    def helper(x):
        with ps.device("cpu:3"):
            return torch.exp(x)

    @ps.function
    def program(x, n):
        a, b, c = torch.sin(x), torch.cos(x), torch.tanh(x)
        with ps.device("cpu:1"):
            a = ps.cond(n > 0, lambda: a * 2, lambda: a)
        loop = lambda i, b: (i + 1, in_loop(b))  # noqa: E731
        b = ps.while_loop(lambda i, b: i < n, loop, (0, b))[1]
        return a, b, helper(c)

    def in_loop(b):
        with ps.device("cpu:2"):
            return torch.sigmoid(b)

    found = devices(program, X, 2)
    assert (found["sin"], found["cos"], found["tanh"]) == ("cpu:1", "cpu:2", "cpu:3")


def test_a_step_without_readers_follows_what_it_reads():
    @ps.function
    def program(x):
        with ps.device("cpu:1"):
            y = torch.sin(x)
        return torch.cos(y)

    assert devices(program, X)["cos"] == "cpu:1"


def test_a_step_that_touches_nothing_placed_is_at_home():
    @ps.function
    def program(x, y):
        with ps.device("cpu:1"):
            x = torch.sin(x)
        return x, torch.cos(y)

    assert devices(program, X, X)["cos"] == "cpu:0"


def test_what_a_device_leaves_open_is_found_by_the_same_rule():
    @ps.function
    def program(x):
        with ps.device("rank:1"):
            x = torch.sin(x)
        with ps.device("rank:1/cpu:2"):
            x = torch.cos(x)
        with ps.device("rank:2"):
            return torch.tanh(x)

    expected = {"sin": "rank:1/cpu:2", "cos": "rank:1/cpu:2", "tanh": "rank:2/cpu:0"}
    assert devices(program, X) == expected


def test_a_step_runs_where_its_parameter_lies():
    @ps.function
    def program(x):
        with ps.device("cpu:1"):
            y = torch.sin(x)
        return y @ weight

    weight = torch.ones(2, 2)
    made = program.program(X)
    placed = place_nodes(_moved(made))
    (product,) = [
        node
        for node in placed.entry.body.walk()
        if isinstance(node.operation, TorchCall) and node.operation.name.endswith("matmul")
    ]
    assert product.device == Device(0, "cuda:0")


def _moved(program: Program) -> Program:
    """The program, traced with its captured tensor on an accelerator."""
    from dataclasses import replace

    body = program.entry.body
    renamed = {}
    nodes: list[Node] = []
    for node in body.nodes:
        if isinstance(node.operation, Captured):
            (value,) = node.outputs
            renamed[value] = replace(value, type=replace(value.type, device="cuda:0"))
            node = replace(node, outputs=(renamed[value],))
        inputs = tuple(renamed.get(value, value) for value in node.inputs)
        nodes.append(replace(node, inputs=inputs))
    entry = replace(program.entry, body=replace(body, nodes=tuple(nodes)))
    return replace(program, functions=(entry,))


def test_calls_on_different_devices_are_not_shared_and_not_one_block():
    @ps.function
    def program(x):
        with ps.device("cpu:0"):
            a = torch.sin(x)
        with ps.device("cpu:1"):
            b = torch.sin(x)
        return a, b

    text = str(program.graph(X))
    assert text.count("torch.sin") == 2
    assert "on cpu:0" in text
    assert "on cpu:1" in text
