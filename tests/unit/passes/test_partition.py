"""The parts of placed graphs: what a reader sees of Send and Recv, and that they fit together."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import penstock as ps
from penstock.ir.graph import Block, Elsewhere, Graph, Recv, Send
from penstock.ir.verify_graph import verify_graph
from tests.placed_programs import PLACED


def graph_of(name: str) -> Graph:
    made = PLACED[name]()
    return made.function.graph(*made.instances[0])


def operations(graph: Graph, kind: type) -> list[object]:
    nodes = (node for context in graph.contexts for node in context.nodes)
    return [node for node in nodes if isinstance(node.operation, kind)]


@pytest.mark.parametrize("name", PLACED)
def test_the_parts_of_a_graph_print_as_short_text(golden, name):
    golden(f"partition_{name}", str(graph_of(name).partition()))


@pytest.mark.parametrize("name", PLACED)
def test_every_part_is_well_formed_and_every_block_is_in_one_part(name):
    graph = graph_of(name)
    verify_graph(graph)
    parts = graph.partition().parts
    for part in parts.values():
        verify_graph(part)
    made = [node.operation.name for part in parts.values() for node in operations(part, Block)]
    assert Counter(made) == Counter(node.operation.name for node in operations(graph, Block))


@pytest.mark.parametrize("name", PLACED)
def test_what_is_received_is_sent(name):
    parts = graph_of(name).partition().parts
    sent = {
        (device, target, wire)
        for device, part in parts.items()
        for node in operations(part, Send)
        for target in node.operation.targets
        for wire in node.inputs
    }
    received = {
        (node.operation.source, device, wire)
        for device, part in parts.items()
        for node in operations(part, Recv)
        for wire in node.outputs
    }
    assert sent == received
    assert sent


def test_values_that_nobody_needs_stay_where_they_are():
    @ps.function
    def program(x):
        with ps.device("cpu:1"):
            y = torch.sin(x)
        with ps.device("cpu:2"):
            y = torch.cos(y)
        with ps.device("cpu:0"):
            return torch.tanh(y)

    home, first, second = program.graph(torch.ones(2)).partition().parts.values()
    assert [len(operations(part, Elsewhere)) for part in (home, first, second)] == [1, 2, 1]


def test_a_graph_that_nobody_has_placed_is_one_part():
    @ps.function
    def program(x):
        return torch.sin(x)

    graph = program.graph(torch.ones(2))
    (part,) = graph.partition().parts.values()
    assert str(part) == str(graph)
