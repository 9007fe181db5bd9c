"""Training steps: optimizers, accumulation, clipping, sparse gradients."""

import copy

import pytest
import torch
from torch import nn

import penstock as ps


class Counter(nn.Module):
    """A small recurrent net over sequences of tokens."""

    def __init__(self, sparse=False):
        super().__init__()
        self.embedding = nn.Embedding(7, 3, sparse=sparse, padding_idx=None if sparse else 0)
        self.cell = nn.GRUCell(3, 3)
        self.out = nn.Linear(3, 1)

    @ps.function
    def forward(self, tokens):
        def step(h, token):
            return self.cell(self.embedding(token), h), token

        last, _ = ps.scan(step, torch.zeros(3), tokens)
        return self.out(last).squeeze(-1)


def plain(model, tokens):
    h = torch.zeros(3)
    for token in tokens:
        h = model.cell(model.embedding(token), h)
    return model.out(h).squeeze(-1)


def made(sparse=False):
    torch.manual_seed(0)
    model = Counter(sparse).double()
    torch.set_default_dtype(torch.float64)
    tokens = [torch.randint(0, 7, (n,)) for n in (3, 1, 4, 0)]
    return model, copy.deepcopy(model), tokens


@pytest.fixture(autouse=True)
def double():
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


def loss_of(scores):
    return sum((score - k) ** 2 for k, score in enumerate(scores))


def assert_same_weights(mine, theirs):
    ours, others = mine.state_dict(), theirs.state_dict()
    torch.testing.assert_close(ours, others, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
        lambda weights: torch.optim.Adam(weights, lr=0.01),
    ],
    ids=["SGD", "Adam"],
)
def test_steps_are_seen_by_the_next_call(optimizer):
    mine, theirs, tokens = made()
    first, second = optimizer(mine.parameters()), optimizer(theirs.parameters())
    for _ in range(3):
        first.zero_grad()
        loss_of(ps.map(mine, tokens)).backward()
        nn.utils.clip_grad_norm_(mine.parameters(), 0.5)
        first.step()
        second.zero_grad()
        loss_of([plain(theirs, row) for row in tokens]).backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        second.step()
    assert_same_weights(mine, theirs)


def test_gradients_accumulate_over_two_backwards():
    mine, theirs, tokens = made()
    for part in (tokens[:2], tokens[2:]):
        loss_of(ps.map(mine, part)).backward()
        loss_of([plain(theirs, row) for row in part]).backward()
    for own, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)


def test_sparse_embeddings_get_sparse_gradients():
    mine, theirs, tokens = made(sparse=True)
    weights = [mine.embedding.weight], [theirs.embedding.weight]
    first, second = (torch.optim.SparseAdam(group, lr=0.1) for group in weights)
    loss_of(ps.map(mine, tokens)).backward()
    loss_of([plain(theirs, row) for row in tokens]).backward()
    assert mine.embedding.weight.grad.is_sparse
    first.step()
    second.step()
    assert_same_weights(mine, theirs)


def test_a_table_that_is_looked_up_and_multiplied():
    table = nn.Embedding(5, 3, sparse=True)

    @ps.function
    def f(k):
        return table(k).sum() + (table.weight**2).sum() * table(k + 1).sum()

    numbers = [1, 2, 3]
    (mine,) = torch.autograd.grad(sum(f.map(numbers)), table.weight)
    eager = sum(f.__wrapped__(torch.tensor(k)) for k in numbers)
    (expected,) = torch.autograd.grad(eager, table.weight)
    torch.testing.assert_close(mine.to_dense(), expected.to_dense())


PENALISED = {
    "looked up": lambda table, k: table(k).sin().sum(),
    "looked up twice": lambda table, k: (table(k) * table(k + 1).exp()).sum(),
}


@pytest.mark.parametrize("memory", [None, "recompute"])
@pytest.mark.parametrize("name", PENALISED)
def test_sparse_gradients_can_be_differentiated_again(name, memory):
    table = nn.Embedding(7, 3, sparse=True)
    code = PENALISED[name]
    function = ps.function(lambda k: code(table, k), memory=memory)

    def second_order(losses):
        total = sum(loss.square() for loss in losses)
        (grad,) = torch.autograd.grad(total, table.weight, create_graph=True)
        assert grad.is_sparse
        (again,) = torch.autograd.grad(grad.to_dense().square().sum(), table.weight)
        return grad.to_dense(), again.to_dense()

    numbers = torch.tensor([1, 2, 2, 5])
    expected = second_order([code(table, k) for k in numbers])
    torch.testing.assert_close(second_order(function.map(numbers)), expected)


def test_a_derivative_without_a_trace_is_taken_by_running_the_block_again():
    table = nn.Embedding(7, 3, sparse=True, padding_idx=0)

    @ps.function
    def f(tokens, n):
        return (table(tokens) * n).sum()

    tokens = torch.tensor([[0, 1], [2, 2], [3, 0]])
    with pytest.warns(
        ps.PenstockWarning, match="run again in backward: its derivative has no trace"
    ):
        (mine,) = torch.autograd.grad(sum(f.map(tokens, [1, 2, 3])), table.weight)
    eager = sum(f.__wrapped__(row, n) for row, n in zip(tokens, (1, 2, 3), strict=True))
    (expected,) = torch.autograd.grad(eager, table.weight)
    torch.testing.assert_close(mine.to_dense(), expected.to_dense())
