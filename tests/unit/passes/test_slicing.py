"""What is host, data, read back, uploaded or uniform, for small programs."""

import pytest
import torch

import penstock as ps
from penstock.ir.graph import Block, Compute, Home, Read, Upload
from penstock.ir.program import TorchCall
from penstock.passes.entry import wrap_entry
from penstock.passes.flow import analyse_flow
from penstock.passes.slicing import Slices, slice_control

pytestmark = pytest.mark.usefixtures("interpreted_loops")


def slices_of(traced, *arguments) -> Slices:
    flow = analyse_flow(wrap_entry(traced.program(*arguments)))
    return slice_control(flow, "float32")


def output_of(slices: Slices, name: str):
    """The output of the torch call of that name."""
    for function in slices.flow.program.functions:
        for node in function.body.walk():
            if isinstance(node.operation, TorchCall) and node.operation.name.endswith(name):
                return node.outputs[0]
    raise AssertionError(name)


def operations(graph, kind):
    return [n for c in graph.contexts for n in c.nodes if isinstance(n.operation, kind)]


@ps.function
def counted(x, n):
    return ps.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, torch.tanh(y)), (0, x))[1]


@ps.function
def converging(x):
    return ps.while_loop(lambda y: y.norm() > 1, lambda y: y / 2, x)


def test_counters_and_their_comparisons_are_on_the_host_and_are_no_data():
    slices = slices_of(counted, torch.ones(2), 3)
    for name in (".lt", ".add"):
        value = output_of(slices, name)
        assert slices.has_host_form(value)
        assert value not in slices.data
    assert output_of(slices, "tanh") in slices.data
    assert output_of(slices, "tanh") not in slices.host
    assert not slices.read


def test_a_predicate_that_the_host_cannot_compute_is_data_and_read_back():
    slices = slices_of(converging, torch.ones(2))
    predicate = output_of(slices, ".gt")
    assert slices.read == {predicate}
    assert predicate in slices.data
    assert not slices.has_host_form(output_of(slices, "norm"))
    assert len(operations(converging.graph(torch.ones(2)), Read)) == 1


def test_a_float_that_control_and_data_need_is_computed_in_both_places():
    @ps.function
    def halve(x):
        return ps.while_loop(lambda y: y > 1, lambda y: y * 0.5, x)

    slices = slices_of(halve, torch.tensor(8.0))
    value = output_of(slices, ".mul")
    assert slices.has_host_form(value)
    assert slices.has_slot_form(value)
    graph = halve.graph(torch.tensor(8.0))
    assert operations(graph, Block)
    assert operations(graph, Compute)
    assert not operations(graph, Read)


def test_a_whole_number_on_the_host_reaches_data_by_upload_or_with_the_launch():
    @ps.function
    def total(x, n):
        return ps.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y + i), (0, x))[1]

    slices = slices_of(total, torch.ones(2), 3)
    (counter,) = (v for v in slices.host if slices.is_uploaded(v) and v in slices.flow.sources)
    assert counter not in slices.data
    graph = total.graph(torch.ones(2), 3)
    assert operations(graph, Upload) == []  # the block takes it along
    (block,) = operations(graph, Block)
    assert sorted(wire.home for wire in block.inputs) == ["host", "slot"]


def test_what_depends_on_weights_and_constants_alone_is_uniform():
    weight = torch.ones(2, 2)

    @ps.function
    def project(x):
        return x @ torch.exp(weight).t()

    slices = slices_of(project, torch.ones(2))
    assert output_of(slices, "exp") in slices.uniform
    assert output_of(slices, "matmul") not in slices.uniform
    graph = project.graph(torch.ones(2))
    (block,) = operations(graph, Block)
    assert len(block.operation.nodes) == 1  # the product; the rest is computed once per call


def test_what_no_output_depends_on_is_not_in_the_graph():
    @ps.function
    def wasteful(x):
        torch.exp(x)
        return torch.sin(x)

    (block,) = operations(wasteful.graph(torch.ones(2)), Block)
    assert [node.operation.name for node in block.operation.nodes] == ["torch.sin"]


def test_an_index_out_of_computed_values_stays_data():
    table = torch.arange(6.0).reshape(3, 2)

    @ps.function
    def look_up(x):
        return table[x.argmax()]

    graph = look_up.graph(torch.tensor([0.0, 2.0, 1.0]))
    assert operations(graph, Read) == []
    assert len(operations(graph, Block)) == 1


def test_a_size_comes_from_the_host_also_where_its_number_has_a_slot():
    @ps.function
    def prefix(x):
        n = x.argmax() + 1
        return x[:n].sum() * n

    graph = prefix.graph(torch.ones(4))
    (block,) = [n for n in operations(graph, Block) if n.operation.sizes]
    homes = {block.inputs[position].home for position in block.operation.sizes}
    assert homes == {Home.HOST}
    x = torch.tensor([1.0, 5.0, 7.0, 2.0])
    assert prefix(x).item() == 39.0
