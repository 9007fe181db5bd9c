"""The table of row-wise calls is true of torch: element i of a result needs elements i alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ir.program import Node, Operand, TorchCall, Value
from penstock.ir.types import TensorType
from penstock.passes.rowwise import LAST_DIMENSIONS, LOSSES, POINTWISE, flat_symbol

#: Operands besides the first of pointwise calls that take several: "x" like the first, "row" of
#: lower rank, or a number.
MORE_OPERANDS = {
    "addcdiv": ("x", "x"),
    "addcmul": ("x", "row"),
    "lerp": ("x", 0.3),
    "masked_fill": ("mask", 0.5),
    "clamp": (-0.5, 0.5),
    "clip": (-0.5, 0.5),
    "type": (torch.float64,),
}

UNARY = frozenset(
    """
    abs bfloat16 bitwise_not bool ceil celu clone contiguous cos cosh detach double elu erf exp
    expm1 float floor gelu half hardswish hardtanh int isfinite isinf isnan leaky_relu log log1p
    log2 logical_not logsigmoid long mish nan_to_num neg ones_like reciprocal relu relu6 round
    rsqrt selu sigmoid sign silu sin sinh softplus softsign sqrt square tan tanh trunc
    zeros_like __abs__ __invert__ __neg__
    """.split()  # noqa: SIM905 - a table of words
)

WHOLE = {"bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor"}
WHOLE |= {"__and__", "__or__", "__xor__", "__invert__"}


def torch_function(name: str):
    owners = (torch, torch.nn.functional) if not name.startswith("__") else ()
    for owner in (*owners, torch.Tensor):
        if hasattr(owner, name) and not isinstance(getattr(owner, name), torch.dtype):
            return getattr(owner, name)
    raise AssertionError(f"torch has no {name}")


def operands_of(name: str, x: torch.Tensor, kind: str) -> list[object]:
    """Operands with one sequence at least; `kind` says what the second is, where there is one."""
    made = {"x": x.flip(0), "row": x[0] + 1, "number": 2, "mask": x > 0}
    if name == "where":
        return [x > 0, x, made[kind]]
    if name in UNARY:
        return [x]
    return [x, *(made.get(item, item) for item in MORE_OPERANDS.get(name, (kind,)))]


def element_of(operand: object, i: int, x: torch.Tensor) -> object:
    is_sequence = isinstance(operand, torch.Tensor) and operand.shape == x.shape
    return operand[i : i + 1] if is_sequence else operand


def assert_row_wise(function, operands: list[object], x: torch.Tensor) -> None:
    whole = function(*operands)
    for i in range(len(x)):
        one = function(*(element_of(operand, i, x) for operand in operands))
        torch.testing.assert_close(whole[i : i + 1], one, equal_nan=True)


@pytest.mark.parametrize("name", sorted(POINTWISE))
@settings(max_examples=15)
@given(st.integers(1, 4), st.sampled_from([(), (3,), (2, 3)]), st.integers(0, 99), st.data())
def test_pointwise_calls_are_row_wise(name, length, inner, seed, data):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(length, *inner, generator=generator)
    if name in WHOLE:
        x = (x * 9).long()
    takes_numbers = name not in {*WHOLE, "maximum", "minimum"} and not name.startswith("logical")
    kind = data.draw(st.sampled_from(["x", "row", *(["number"] if takes_numbers else [])]))
    assert_row_wise(torch_function(name), operands_of(name, x, kind), x)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        (name, rank)
        for name in sorted(LAST_DIMENSIONS - {"embedding"})
        for rank in (2, 3)
        if (name, rank) != ("mm", 3)  # torch.mm takes matrices
    ],
)
def test_calls_on_last_dimensions_are_row_wise(name, rank):
    x = torch.randn(4, *(2, 3)[3 - rank :])
    others = {"linear": [torch.randn(5, 3), torch.randn(5)], "layer_norm": [(3,)]}
    operands = [x, *others.get(name, [torch.randn(3, 5)])]
    assert_row_wise(torch_function(name), operands, x)


def test_an_embedding_is_row_wise():
    words, weight = torch.tensor([3, 1, 3]), torch.randn(5, 2)
    assert_row_wise(torch.nn.functional.embedding, [words, weight], words)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_losses_of_elements_are_row_wise(name):
    classes = torch.tensor([3, 1, -100])
    given = torch.randn(3, 5)

    def losses(given, classes):
        return getattr(torch.nn.functional, name)(given, classes, reduction="none")

    whole = losses(given, classes)
    for i in range(3):
        torch.testing.assert_close(whole[i : i + 1], losses(given[i : i + 1], classes[i : i + 1]))


# ---- what the table says of calls ----------------------------------------------------------------

SEQUENCE = TensorType("float32", ("n0", 3))
OTHER = TensorType("float32", ("n1", 3))


def call(name, *kinds, out=SEQUENCE, args=None, **kwargs) -> Node:
    inputs = tuple(Value(number, kind) for number, kind in enumerate(kinds))
    args = tuple(map(Operand, range(len(kinds)))) if args is None else args
    return Node(TorchCall(name, args, tuple(kwargs.items())), inputs, (Value(9, out),))


ROW_WISE = {
    "a pointwise call": call("torch.tanh", SEQUENCE),
    "two sequences of one length": call("torch.Tensor.add", SEQUENCE, SEQUENCE),
    "a row for all elements": call("torch.Tensor.add", SEQUENCE, TensorType("float32", (3,))),
    "a linear layer": call("torch.nn.functional.linear", SEQUENCE, TensorType("float32", (3, 3))),
    "a product with a matrix": call("torch.matmul", SEQUENCE, TensorType("float32", (3, 3))),
    "an embedding": call(
        "torch.embedding", TensorType("float32", (9, 3)), TensorType("int64", ("n0",))
    ),
    "a loss of each element": call(
        "torch.nn.functional.cross_entropy",
        SEQUENCE,
        TensorType("int64", ("n0",)),
        out=TensorType("float32", ("n0",)),
        reduction="none",
    ),
    "a norm over the last dimension": call(
        "torch.nn.functional.layer_norm", SEQUENCE, args=(Operand(0), (3,))
    ),
}

MIXING = {
    "a softmax": call("torch.softmax", SEQUENCE, args=(Operand(0), 0)),
    "a sum": call("torch.sum", SEQUENCE, out=TensorType("float32", (3,))),
    "a running sum": call("torch.cumsum", SEQUENCE, args=(Operand(0), 0)),
    "a sort": call("torch.sort", SEQUENCE, args=(Operand(0), 0)),
    "a flip": call("torch.flip", SEQUENCE, args=(Operand(0), (0,))),
    "a norm over everything": call(
        "torch.nn.functional.layer_norm", SEQUENCE, args=(Operand(0), (4, 3))
    ),
    "attention scores": call("torch.matmul", SEQUENCE, SEQUENCE),
    "the loss of all elements": call(
        "torch.nn.functional.cross_entropy",
        SEQUENCE,
        TensorType("int64", ("n0",)),
        out=TensorType("float32", ()),
        reduction="mean",
    ),
    "a product with stacked matrices": call(
        "torch.matmul",
        TensorType("float32", ("n0", 2, 3)),
        TensorType("float32", (4, 3, 3)),
        out=TensorType("float32", ("n0", 2, 3)),
    ),
    "a matrix times a sequence": call("torch.matmul", TensorType("float32", (4, 4)), SEQUENCE),
    "sequences of two lengths": call("torch.Tensor.add", SEQUENCE, OTHER),
    "a result of another length": call("torch.tanh", SEQUENCE, out=OTHER),
    "a tensor of full rank that is no sequence": call(
        "torch.Tensor.add", SEQUENCE, TensorType("float32", (1, 3))
    ),
    "no sequence at all": call("torch.tanh", TensorType("float32", (3,)), out=SEQUENCE),
}


@pytest.mark.parametrize("what", ROW_WISE)
def test_row_wise_calls_run_along_their_symbol(what):
    assert flat_symbol(ROW_WISE[what]) == "n0"


@pytest.mark.parametrize("what", MIXING)
def test_calls_that_mix_are_not_in_the_table(what):
    assert flat_symbol(MIXING[what]) is None
