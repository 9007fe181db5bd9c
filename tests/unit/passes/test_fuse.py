"""Blocks: one where one suffices, and never a group that waits for itself."""

import pytest
import torch

import penstock as ps
from penstock.demo import TreeLSTM
from penstock.ir.graph import Block, Compute, Graph
from penstock.ir.program import TorchCall

pytestmark = pytest.mark.usefixtures("interpreted_loops")


def blocks_of(graph: Graph) -> list[Block]:
    operations = [node.operation for context in graph.contexts for node in context.nodes]
    return [operation for operation in operations if isinstance(operation, Block)]


def calls_of(block: Block) -> list[str]:
    names = [n.operation.name for n in block.nodes if isinstance(n.operation, TorchCall)]
    return [name.rsplit(".", 1)[-1] for name in names]


def test_the_step_of_an_rnn_is_one_block():
    cell = torch.nn.LSTMCell(3, 4)

    @ps.function
    def encode(xs):
        start = (torch.zeros(4), torch.zeros(4))
        return ps.scan(lambda state, x: (cell(x, state),) * 2, start, xs)[0]

    (block,) = blocks_of(encode.graph(torch.ones(5, 3)))
    assert not block.is_flat


def test_the_leaf_and_the_cell_of_a_tree_lstm_are_one_block_each():
    model = TreeLSTM(vocabulary=20, embedding=3, hidden=3)
    tree = ps.data.Tree.from_nested(((1, 2), 3))
    assert len(blocks_of(model.forward.graph(tree))) <= 3  # and what is done with the root


def test_what_only_a_later_block_reads_becomes_part_of_it():
    @ps.function
    def late(x, n):
        early = torch.sin(x)
        steps = ps.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, torch.exp(y)), (0, x))[1]
        return early + steps

    found = [calls_of(block) for block in blocks_of(late.graph(torch.ones(2), 3))]
    assert sorted(found) == [["exp"], ["sin", "add"]]


def test_what_an_earlier_node_reads_does_not_sink():
    @ps.function
    def shared(x, n):
        early = torch.sin(x)
        steps = ps.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, torch.exp(y)), (0, early))[1]
        return early + steps

    found = [calls_of(block) for block in blocks_of(shared.graph(torch.ones(2), 3))]
    assert sorted(found) == [["add"], ["exp"], ["sin"]]


def test_calls_on_elements_of_a_sequence_are_one_flat_block():
    linear, embedding = torch.nn.Linear(3, 3), torch.nn.Embedding(9, 3)

    @ps.function
    def embed(words):
        n = words.shape[0]  # makes the dimension dynamic
        return torch.tanh(linear(embedding(words))), n

    (block,) = blocks_of(embed.graph(torch.tensor([1, 2, 3])))
    assert block.is_flat
    assert calls_of(block) == ["embedding", "linear", "tanh"]


def test_calls_without_a_common_input_are_blocks_of_their_own():
    @ps.function
    def apart(x, y):
        return torch.sin(x), torch.cos(y)

    assert len(blocks_of(apart.graph(torch.ones(2), torch.ones(3)))) == 2


def test_host_operations_of_one_arm_are_one_computation():
    @ps.function
    def arithmetic(x, n):
        k = (n + 1) * 2 - n
        return ps.cond(k > 3, lambda: x, lambda: -x)

    nodes = arithmetic.graph(torch.ones(2), 3).contexts[0].nodes
    (compute,) = [n.operation for n in nodes if isinstance(n.operation, Compute)]
    assert [step.name for step in compute.steps] == ["add", "mul", "sub", "gt"]


@pytest.mark.parametrize("start", [-2, 0, 3])
def test_what_decides_on_a_branch_is_not_grouped_with_what_reads_its_result(start):
    """Both read `n`, and both are late: in one group each would wait for the other."""

    @ps.function
    def twice(n):
        first = ps.cond(n > 0, lambda: n + 1, lambda: n + 2)
        second = ps.cond(first < n, lambda: n + 3, lambda: n + 4)
        return second + n

    n = torch.tensor(start)
    assert twice(n).item() == 2 * start + 4


def test_the_same_holds_for_data():
    @ps.function
    def twice(x):
        first = ps.cond(x.sum() > 0, lambda: x + 1, lambda: x + 2)
        second = ps.cond((first * x).sum() < 0, lambda: x + 3, lambda: x + 4)
        return second * x

    for start in (-3.0, -1.0, 2.0):
        x = torch.full((2,), start)
        expected = ((x + 3) if ((x + (1 if start > 0 else 2)) * x).sum() < 0 else x + 4) * x
        torch.testing.assert_close(twice(x), expected)


def test_a_product_with_a_state_joins_the_attention_that_reads_it():
    @ps.function
    def attend(memory, h):
        return torch.softmax(torch.tanh(memory + h) @ h, 0) @ memory

    attend.map([torch.ones(2, 3), torch.ones(4, 3)], torch.ones(2, 3))
    (block,) = blocks_of(attend.graph(torch.ones(5, 3), torch.ones(3)))
    assert calls_of(block) == ["add", "tanh", "matmul", "softmax", "matmul"]


def test_row_wise_layers_stay_apart_from_what_mixes():
    weight = torch.ones(3, 3)

    @ps.function
    def pool(xs):
        return torch.tanh(xs @ weight).softmax(0).sum(0)

    pool.map([torch.ones(2, 3), torch.ones(4, 3)])
    found = {block.is_flat: calls_of(block) for block in blocks_of(pool.graph(torch.ones(5, 3)))}
    assert found == {True: ["matmul", "tanh"], False: ["softmax", "sum"]}


def test_in_a_loop_products_with_weights_stay_apart_from_what_mixes():
    cell = torch.nn.GRUCell(3, 3)

    @ps.function
    def decode(memory, h, steps):
        def body(t, h):
            h = cell(h, h)
            return t + 1, torch.softmax(memory @ h, 0) @ memory

        return ps.while_loop(lambda t, h: t < steps, body, (0, h))[1]

    memories = [torch.ones(2, 3), torch.ones(4, 3)]
    decode.map(memories, torch.ones(2, 3), [1, 2])
    found = [calls_of(block) for block in blocks_of(decode.graph(memories[0], torch.ones(3), 2))]
    (recurrent,) = [calls for calls in found if "gru_cell" in calls]
    assert "softmax" not in recurrent
    assert ["matmul", "softmax", "matmul"] in found


def test_a_callee_works_element_by_element_on_what_it_is_given():
    layer = torch.nn.Linear(3, 4)

    @ps.function
    def inner(xs, ys):
        return layer(xs) * torch.tanh(layer(ys)) + layer(xs)

    @ps.function
    def outer(xs):
        return inner(xs, xs)

    rows = [torch.randn(length, 3) for length in (2, 5, 3)]
    found = outer.map(rows)
    (block,) = blocks_of(outer.graph(rows[0]))
    assert block.is_flat
    assert len(block.parameters) == 3
    for left, row in zip(found, rows, strict=True):
        torch.testing.assert_close(left, layer(row) * torch.tanh(layer(row)) + layer(row))
