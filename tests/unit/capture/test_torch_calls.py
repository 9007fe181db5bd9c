from __future__ import annotations

from functools import partial
from types import MethodType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import penstock as ps
from penstock.calls.torch_names import name_of, resolve
from penstock.errors import ArgumentError
from penstock.ir.types import TensorType
from tests.unit.capture.tracing import assert_agrees, entry_of, interpreted, operations

NAMED = [
    torch.add,
    torch.Tensor.add,
    torch.Tensor.__getitem__,
    torch.Tensor.__rsub__,
    torch.Tensor.T.__get__,
    torch.Tensor.mT.__get__,
    torch.Tensor.real.__get__,
    torch.nn.functional.linear,
    torch.nn.functional.relu,
    torch.nn.functional.cross_entropy,
    torch._C._nn.gelu,
    torch.lstm_cell,
    torch.einsum,
    torch.linalg.norm,
    torch.special.expit,
    torch.fft.fft,
    torch.ops.aten.add.Tensor,
    torch.ops.aten.mul,
]


@pytest.mark.parametrize(
    "function", NAMED, ids=lambda function: getattr(function, "__name__", type(function).__name__)
)
def test_a_name_leads_back_to_its_function(function) -> None:
    assert resolve(name_of(function)) == function


def test_a_function_without_a_name_is_registered() -> None:
    nameless = (lambda: lambda x: x)()
    assert resolve(name_of(nameless)) is nameless


x34 = torch.arange(12.0).reshape(3, 4) / 7
w44 = torch.linspace(-1, 1, 16).reshape(4, 4)

CALLS = {
    "operators": lambda x: (-x + 1) * 2 / (x + 3) - x**2 + 2**x + (1 - x) // 2 % 3,
    "comparisons": lambda x: (x > 1) & (x <= 2) | ~(x == 3),
    "properties": lambda x: (x.T, x.mT, x.real, x.T.T.H),
    "reductions": lambda x: (x.sum(), x.mean(0), x.amax(-1), x.argmax(), x.norm(), x.std(dim=1)),
    "named results": lambda x: x.topk(2).values + x.sort(dim=-1)[0][:, :2],
    "max with indices": lambda x: x.max(dim=1),
    "functional": lambda x: (F.softmax(x, -1), F.gelu(x), F.relu(x), F.layer_norm(x, (4,))),
    "captured constant": lambda x: x @ w44,
    "splitting": lambda x: (x.chunk(2, -1), x.split([1, 3], 1), torch.cat([x, x]), x.unbind(0)),
    "stacking": lambda x: torch.stack([x, x * 2], 1),
    "where": lambda x: torch.where(x > 1, x, 0.0),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "gather": lambda x: x.gather(1, torch.zeros(3, 1, dtype=torch.int64)),
    "indexing": lambda x: (x[0], x[-1, 1:], x[:, None, 2], x[..., 0], x[[0, 2]], x[:, [1, 1]]),
    "tensor indexing": lambda x: x[torch.tensor([2, 0])],
    "dtype": lambda x: (x.to(torch.float64), x.long(), x.type_as(torch.ones(1)), x.half()),
    "shapes": lambda x: (x.view(x.shape[0], -1), x.reshape(-1), x.expand(2, *x.shape), x.flatten()),
    "factories": lambda x: (torch.zeros(2), torch.ones_like(x), x.new_zeros(3), torch.arange(3)),
    "unpacking": lambda x: sum(row.sum() for row in x),
    "conv": lambda x: F.conv1d(x[None], torch.ones(2, 3, 1)),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "cross entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 1, 2])),
    "operations on captured values only": lambda x: x + (w44 @ w44).sum(),
    "tensor from traced numbers": lambda x: torch.tensor([x[0, 0], x[0, 1], 2.0]),
    "filled with a traced number": lambda x: torch.full((2,), x[0, 1]),
    "data index": lambda x: x[x[0].argmax().clamp(max=2)],
    "detach": lambda x: x.detach() + x.data,
    "scalars": lambda x: x.sum() + 3 * x.mean(),
    "number of elements": lambda x: x.numel() + x.dim() + len(x) + x.size(-1) + x.sum(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_traced_call_computes_what_eager_code_computes(name) -> None:
    assert_agrees(CALLS[name], x34)


MODULES = {
    "linear": nn.Linear(4, 2),
    "lstm cell": nn.LSTMCell(4, 3),
    "gru cell": nn.GRUCell(4, 3),
    "layer norm": nn.LayerNorm(4),
    "lstm": nn.LSTM(4, 3),
    "attention": None,
    "sequential": nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.LeakyReLU(0.1, True)),
    "batch norm": nn.BatchNorm1d(4).eval(),
    "dropout in evaluation": nn.Dropout(0.5).eval(),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_traced_with_their_parameters_by_reference(name) -> None:
    module = MODULES[name]
    if module is None:
        attention = nn.MultiheadAttention(4, 2)
        entry = assert_agrees(lambda x: attention(x, x, x)[0], x34)
    else:
        entry = assert_agrees(lambda x: module(x), x34)
    owners = {capture.owner for capture in entry.traced.captures if capture.owner is not None}
    reachable = set((module or attention).modules())
    assert owners <= reachable
    parameters = list((module or attention).parameters())
    assert bool(owners) == bool(parameters)


def test_captures_have_the_names_that_a_user_would_write() -> None:
    cell = nn.LSTMCell(4, 3)
    entry = entry_of(lambda x: cell(x), x34)
    assert set(entry.program.capture_names) >= {"cell.weight_ih", "cell.bias_hh"}


def test_a_replaced_parameter_is_seen_by_the_next_fetch() -> None:
    linear = nn.Linear(4, 2)
    entry = entry_of(lambda x: linear(x), x34)
    linear.weight = nn.Parameter(torch.zeros(2, 4))
    assert any(capture.fetch() is linear.weight for capture in entry.traced.captures)


def test_no_grad_inside_a_program_detaches() -> None:
    def f(x):
        with torch.no_grad():
            y = x * 2
        return y + x

    assert operations(assert_agrees(f, x34)).count("torch.Tensor.detach") == 1


def test_numbers_stay_literals_in_torch_calls() -> None:
    entry = entry_of(lambda x: x * 2, x34)
    assert operations(entry) == ["torch.Tensor.mul"]


def test_arguments_that_are_numbers_are_scalars_of_the_program() -> None:
    entry = entry_of(lambda n, flag, t: (n, flag, t), 3, True, 0.5)
    types = [value.type for value in entry.program.entry.body.inputs]
    assert types == [TensorType("int64"), TensorType("bool"), TensorType("float32")]


def test_dropout_in_training_draws_from_a_key() -> None:
    entry = entry_of(lambda x: F.dropout(F.dropout(x, 0.5), 0.5), x34)
    assert operations(entry) == ["RandomKey", "penstock.random.dropout"] * 2
    sites = [node.site for node in entry.program.entry.body.nodes[::2]]
    assert sites == [(0,), (1,)]


attention_with_dropout = nn.MultiheadAttention(4, 2, dropout=0.5)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.rand(3),
        lambda x: torch.randn(2, 3),
        lambda x: torch.rand_like(x),
        lambda x: torch.randint(2, 5, (4,)),
        lambda x: torch.randint(5, (4,)),
        lambda x: torch.bernoulli(x.sigmoid()),
        lambda x: torch.normal(x, 1.0),
        lambda x: torch.multinomial(x.abs() + 0.1, 2),
        lambda x: torch.multinomial(x[0].abs() + 0.1, 3, replacement=True),
        lambda x: nn.Dropout(0.3)(x),
        lambda x: torch.dropout(x, 0.5, True),
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
        lambda x: attention_with_dropout(x, x, x)[0],
    ],
)
def test_random_operations_have_the_types_of_torch(draw) -> None:
    found, expected = interpreted(draw, x34), draw(x34)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


def first_of(module, x):
    return module(x)[0]


@pytest.mark.parametrize(
    ("name", "draws"),
    [
        ("poisson", lambda x: torch.poisson(x)),
        ("binomial", lambda x: torch.binomial(x, x)),
        ("_standard_gamma", lambda x: torch.distributions.Gamma(x, x).sample()),
        ("randperm", lambda x: x[torch.randperm(3)]),
        ("lstm with dropout", partial(first_of, nn.LSTM(4, 4, 2, dropout=0.5))),
        ("gru with dropout", partial(first_of, nn.GRU(4, 4, 2, dropout=0.5))),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_a_random_operation_without_a_key_is_refused(name, draws) -> None:
    with pytest.raises(ArgumentError, match=f"{name}.*: this random operation has no form"):
        entry_of(lambda x: draws(x), x34)


def test_a_recurrent_module_without_dropout_between_layers_draws_nothing() -> None:
    modules = nn.LSTM(4, 4, 2), nn.LSTM(4, 4, 1), nn.GRU(4, 4, 2, dropout=0.5).eval()
    for module in modules:
        rows = torch.randn(2, 3, 4)
        found = ps.function(MethodType(first_of, module)).map(rows, out="stack")
        torch.testing.assert_close(found, torch.stack([module(row)[0] for row in rows]))


def test_sources_are_lines_of_user_code() -> None:
    entry = entry_of(lambda x: x.sin(), x34)
    source = entry.program.entry.body.nodes[0].source
    assert source.file.endswith("test_torch_calls.py")
    assert source.function == "<lambda>"


def test_an_out_argument_is_bound_to_the_result():
    @ps.function
    def f(x, y):
        result = torch.empty(3)
        torch.add(x, y, out=result)
        return result * 2

    assert f.map([torch.ones(3)] * 2, [torch.ones(3)] * 2, out="stack").tolist() == [[4.0] * 3] * 2
