"""Random loops of row-wise arithmetic: native code and the machine give one answer.

A body is drawn as a small tree of calls on two carried numbers and two that are read; branches and
an inner loop may be in it. Everything stays between -2 and 2, where derivatives are tame.
"""

import hypothesis.strategies as st
import torch
from hypothesis import given, settings

import penstock as ps
from penstock.run.native.choice import native_loops

UNARY = [torch.sin, torch.tanh, torch.atan, lambda x: -x, lambda x: x.clamp(-1.0, 1.5)]
BINARY = [
    lambda x, y: x + 0.5 * y,
    lambda x, y: x - y * 0.3,
    lambda x, y: x * y,
    lambda x, y: x / (1.5 + y * y),
    torch.maximum,
    lambda x, y: torch.where(x > y, x * 0.5, y),
    lambda x, y: ps.cond(x > 0.2, lambda: x * y, lambda: torch.cos(y)),
]


def names():
    return st.sampled_from(["x", "y", "a", "b"])


def calls(operands):
    unary = st.tuples(st.sampled_from(UNARY), operands)
    return unary | st.tuples(st.sampled_from(BINARY), operands, operands)


expressions = st.recursive(names(), calls, max_leaves=5)


def evaluate(expression, values):
    if isinstance(expression, str):
        return values[expression]
    call, *operands = expression
    return call(*(evaluate(operand, values) for operand in operands))


def make(first, second, inner, weight):
    """A loop whose body computes the expressions, with a loop inside if `inner` is one."""

    def step(x, y, a, b):
        values = {"x": x, "y": y, "a": a, "b": b * weight}
        new = torch.tanh(evaluate(first, values)) * 2
        return new, torch.tanh(evaluate(second, {**values, "x": new})) * 2

    def body(i, x, y, a, b):
        if inner is not None:
            _, x = ps.while_loop(
                lambda j, x: j < i % 3,
                lambda j, x: (j + 1, torch.sin(evaluate(inner, {"x": x, "y": y, "a": a, "b": b}))),
                (0, x),
            )
        return (i + 1, *step(x, y, a, b))

    @ps.function
    def program(x, y, a, b, n):
        _, x, y = ps.while_loop(
            lambda i, x, y: i < n, lambda i, x, y: body(i, x, y, a, b), (0, x, y)
        )
        return x, y

    return program


def run(program, columns, trips, weight):
    given = [column.clone().requires_grad_() for column in columns]
    x, y = program.map(*given, trips, out="stack")
    weight.grad = None
    (x * 0.7).sum().add((y * 1.3).sum()).backward()
    return [x, y, *(column.grad for column in given), weight.grad]


@settings(max_examples=10)
@given(expressions, expressions, st.none() | expressions)
def test_values_and_gradients_agree(first, second, inner):
    generator = torch.Generator().manual_seed(3)
    columns = torch.randn(4, 6, generator=generator, dtype=torch.float64).clamp(-2, 2)
    trips = torch.tensor([0, 1, 2, 5, 9, 3])
    weight = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    native = run(make(first, second, inner, weight), columns, trips, weight)
    with native_loops(False):
        plain = run(make(first, second, inner, weight), columns, trips, weight)
    for left, right in zip(native, plain, strict=True):
        assert (left is None) == (right is None)
        if right is not None:
            torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)
