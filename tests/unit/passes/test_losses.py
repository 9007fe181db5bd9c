"""Losses of sequences run over all elements at once, and are what torch says they are."""

import pytest
import torch
import torch.nn.functional as F

import penstock as ps
from penstock.ir.graph import Block
from penstock.passes.pipeline import program_to_graph

CLASSES = 5
LENGTHS = (4, 1, 7, 0)


def loss_of_tokens(**options):
    embedding, output = torch.nn.Embedding(CLASSES, 3), torch.nn.Linear(3, CLASSES)

    @ps.function
    def loss(tokens):
        n = tokens.shape[0]  # makes the dimension dynamic
        return F.cross_entropy(output(embedding(tokens)), tokens, **options), n

    return loss


def blocks_of(program):
    graph = program_to_graph(program)
    nodes = [node for context in graph.contexts for node in context.nodes]
    return [node.operation for node in nodes if isinstance(node.operation, Block)]


def calls_of(block):
    return [node.operation.name.rsplit(".", 1)[-1] for node in block.nodes]


def flat_calls(function, *arguments):
    blocks = blocks_of(function.program(*arguments))
    return [call for block in blocks if block.is_flat for call in calls_of(block)]


TOKENS = torch.tensor([1, 0, 2, 1])


@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"label_smoothing": 0.1}])
def test_a_loss_is_in_one_block_with_the_product_of_its_predictions(options):
    assert "cross_entropy" in flat_calls(loss_of_tokens(**options), TOKENS)


@pytest.mark.parametrize(
    "options",
    [{"weight": torch.ones(CLASSES)}, {"size_average": True}],
)
@pytest.mark.filterwarnings("ignore:size_average")
def test_what_classes_count_by_keeps_a_loss_whole(options):
    assert "cross_entropy" not in flat_calls(loss_of_tokens(**options), TOKENS)


def test_a_loss_of_float16_stays_whole():
    """The sum of what 12,000 tokens lose is beyond its largest number, their mean is not."""
    assert torch.full((12_000,), 8.0).half().sum().isinf()

    @ps.function
    def loss(given, classes):
        n = given.shape[0]
        return F.cross_entropy(given, classes), n

    def is_flat(dtype):
        return "cross_entropy" in flat_calls(loss, torch.ones(4, CLASSES, dtype=dtype), TOKENS)

    assert not is_flat(torch.float16)
    assert is_flat(torch.float32)


def test_a_loss_of_a_fixed_size_stays_whole():
    @ps.function
    def loss(given, classes):
        return F.cross_entropy(given, classes)

    program = loss.program(torch.ones(4, CLASSES), TOKENS)
    (block,) = blocks_of(program)
    assert calls_of(block) == ["cross_entropy"]


def test_predictions_that_lie_in_mixing_blocks_stay_there():
    embedding = torch.nn.Embedding(CLASSES, CLASSES)

    @ps.function
    def loss(tokens):
        n, states = tokens.shape[0], embedding(tokens)
        mixed = torch.softmax(states @ states.T, 1) @ states
        return F.cross_entropy(torch.tanh(mixed), tokens), n

    assert "cross_entropy" not in flat_calls(loss, TOKENS)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reduction": "sum"},
        {"reduction": "none"},
        {"ignore_index": 2},
        {"ignore_index": 2, "label_smoothing": 0.1},
        {"reduction": "sum", "ignore_index": 0, "label_smoothing": 0.3},
    ],
)
@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
def test_losses_and_gradients_are_those_of_torch(name, options):
    if name == "nll_loss":
        options = {key: value for key, value in options.items() if key != "label_smoothing"}
    draw = torch.Generator().manual_seed(0)
    output = torch.randn(CLASSES, 3, generator=draw, dtype=torch.float64, requires_grad=True)
    columns = [
        [torch.randn(n, 3, generator=draw, dtype=torch.float64) for n in LENGTHS],
        [torch.randint(CLASSES, (n,), generator=draw) for n in LENGTHS],
    ]
    columns[1][1][:] = 2  # the only one of its sequence, and ignored where 2 is

    def loss(states, tokens):
        return getattr(F, name)(F.linear(states, output), tokens, **options).sum()

    def both(values):
        known = [value for value in values if not value.isnan()]
        weights = torch.arange(1.0, len(known) + 1, dtype=torch.float64)
        given = torch.autograd.grad((torch.stack(known) * weights).sum(), output)
        return [*values, *given]

    expected = both([loss(*row) for row in zip(*columns, strict=True)])
    found = both(ps.function(loss).map(*columns))
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_a_sequence_of_which_nothing_counts_has_a_gradient_of_zeros():
    given = torch.randn(3, CLASSES, requires_grad=True)
    other = torch.randn(2, CLASSES, requires_grad=True)
    classes = torch.full((3,), -100), torch.tensor([1, -100])
    loss = ps.function(lambda given, classes: F.cross_entropy(given, classes))
    losses = loss.map([given, other], list(classes))
    assert [loss.isnan().item() for loss in losses] == [True, False]
    (found,) = torch.autograd.grad(losses[0], given)
    (expected,) = torch.autograd.grad(F.cross_entropy(given, classes[0]), given)
    torch.testing.assert_close(found, expected, equal_nan=True)
