"""Every error that the library promises, in order; their texts are in the golden file.

What happens at run time is here for one instance; the other ways to run are in the modules beside
this one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import penstock as ps
from penstock.errors import PenstockError, PenstockWarning
from tests.unit.errors.messages import blames_a_marked_line, raised_by, text_of

x3 = torch.tensor([1.0, -2.0, 3.0])
total = torch.zeros(3)


class Leaf:
    """A Python tree as users have them."""


@ps.function
def other_structure(x):
    return ps.cond(x.sum() > 0, lambda: (x, x), lambda: x)  # blamed


@ps.function
def other_shape(x):
    return ps.cond(x.sum() > 0, lambda: {"h": x}, lambda: {"h": x[:2]})  # blamed


@ps.function
def other_dtype(x):
    return ps.switch(x.argmax(), [lambda: x, lambda: x.double()])  # blamed


@ps.function
def other_carry(x):
    state = {"hidden": x, "count": 0}
    return ps.while_loop(  # blamed
        lambda s: s["count"] < 3, lambda s: {"hidden": s["hidden"].double(), "count": 1}, state
    )


@ps.function
def python_if(x):
    if x.sum() > 0:  # blamed
        return x
    return -x


@ps.function
def python_while(x):
    while x.sum() > 0:  # blamed
        x = x - 1
    return x


@ps.function
def python_bool(x):
    return bool(x.any())  # blamed


@ps.function
def python_int(x):
    return int(x.sum())  # blamed


@ps.function
def python_range(n):
    return [i for i in range(n)]  # noqa: C416  # blamed


@ps.function
def identity(x):
    return x


@ps.function
def add(x, y):
    return x + y


@ps.function
def read(i):
    array = ps.TensorArray(3).write(0, 1.5)
    return array.read(i)  # blamed


@ps.function
def write(i):
    return ps.TensorArray(3).write(i, 1.5).read(i)  # blamed


@ps.function
def stack(n):
    return ps.TensorArray(n).write(0, 1.5).stack()  # blamed


@ps.function
def choose(i, x):
    return ps.switch(i, [lambda: x, lambda: -x])  # blamed


@ps.function
def no_base_case(x):
    return no_base_case(x + 1) * 2  # blamed


@ps.function(max_depth=50)
def no_end(i):
    return ps.cond(
        i < 0,
        lambda: i,
        lambda: no_end(i + 1) + 1,  # blamed
    )


@ps.function
def mine(x):
    raise KeyError("mine")  # blamed


@ps.function
def not_a_number(x):
    return ps.cond(x / x, lambda: x, lambda: -x)  # blamed


@ps.function
def changes_a_captured_tensor(x):
    return total.add_(x)  # blamed


LIST: dict[str, Callable[[], Any]] = {
    "branches of other structure": lambda: other_structure(x3),
    "branches of other shape": lambda: other_shape(x3),
    "branches of other dtype": lambda: other_dtype(x3),
    "loop that changes its types": lambda: other_carry(x3),
    "traced value in if": lambda: python_if(x3),
    "traced value in while": lambda: python_while(x3),
    "traced value in bool": lambda: python_bool(x3),
    "traced value in int": lambda: python_int(x3),
    "traced value in range": lambda: python_range(3),
    "columns of different lengths": lambda: add.map([x3, x3], [x3]),  # blamed
    "argument that cannot be traced": lambda: identity(Leaf()),  # blamed
    "column that cannot be traced": lambda: identity.map([Leaf(), Leaf()]),  # blamed
    "instance of other structure": lambda: identity.map([(x3, x3), (x3, x3), (x3,)]),  # blamed
    "instance of other dtype": lambda: identity.map([x3, x3, x3.double()]),  # blamed
    "stack of unequal shapes": lambda: identity.map([x3, x3, x3[:2]], out="stack"),  # blamed
    "array read before it is written": lambda: read(1),
    "array read out of range": lambda: read(3),
    "array written out of range": lambda: write(-1),
    "array stacked before it is written": lambda: stack(2),
    "array of negative size": lambda: stack(-2),
    "switch index out of range": lambda: choose(2, x3),
    "recursion without a base case": lambda: no_base_case(x3),
    "recursion that never reaches its base case": lambda: no_end(0),
    "exception of user code": lambda: mine(x3),
    "nan as predicate": lambda: not_a_number(0.0),
    "change of a captured tensor": lambda: changes_a_captured_tensor(x3),
}


@pytest.mark.parametrize("name", LIST)
def test_each_blames_the_line_of_the_user(name) -> None:
    error = raised_by(LIST[name])
    assert blames_a_marked_line(error), text_of(error)
    assert isinstance(error, PenstockError | KeyError)


def test_each_reads_as_it_should(golden) -> None:
    texts = [f"# {name}\n{text_of(raised_by(call))}\n" for name, call in LIST.items()]
    golden("error_list", "\n".join(texts))


def test_more_than_eight_traces_are_a_warning_that_says_what_changed(golden) -> None:
    @ps.function
    def scaled(x, factor):
        return x * len(factor)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for size in range(1, 12):
            scaled(x3, "s" * size)  # blamed
    (found,) = [item for item in caught if item.category is PenstockWarning]
    golden("many_traces", text_of(found.message))
    assert blames_a_marked_line(found.message)


def test_errors_are_the_builtin_ones_too() -> None:
    assert isinstance(raised_by(LIST["switch index out of range"]), IndexError)
    assert isinstance(raised_by(LIST["nan as predicate"]), ValueError)
    assert isinstance(raised_by(LIST["recursion that never reaches its base case"]), RecursionError)
    assert isinstance(raised_by(LIST["branches of other shape"]), TypeError)
    assert isinstance(raised_by(LIST["array of negative size"]), ValueError)
    assert isinstance(raised_by(LIST["change of a captured tensor"]), RuntimeError)
