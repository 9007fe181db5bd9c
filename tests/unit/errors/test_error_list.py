"""Every error that the library promises, in order; their texts are in the golden file.

What happens at run time is here for one instance; the other ways to run are in the modules beside
this one.
"""

from __future__ import annotations

import multiprocessing.process
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
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


@ps.function(autograph=False)
def python_if(x):
    if x.sum() > 0:  # blamed
        return x
    return -x


@ps.function(autograph=False)
def python_while(x):
    while x.sum() > 0:  # blamed
        x = x - 1
    return x


@ps.function(autograph=False)
def python_bool(x):
    return bool(x.any())  # blamed


@ps.function(autograph=False)
def python_int(x):
    return int(x.sum())  # blamed


@ps.function(autograph=False)
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
def contents(x):
    return x * x[0].item()  # blamed


@ps.function
def through_numpy(x):
    return torch.as_tensor(numpy.tanh(x))  # blamed


@ps.function
def changes_its_input(x):
    x += 1  # blamed
    return x


@ps.function
def returns_an_object(x):
    return {"x": x, "leaf": Leaf()}


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


@ps.function
def one_branch(x):
    if x.sum() > 0:
        y = x
    return y  # blamed


@ps.function
def only_in_the_loop(x, n):
    for i in range(n):
        y = x * i
    return y  # blamed


@ps.function
def variable_of_two_shapes(x):
    if x.sum() > 0:  # blamed
        y = x
    else:
        y = x[:2]
    return y


@ps.function
def value_on_one_path(x):
    if x.sum() > 0:  # blamed
        return x
    return None


@ps.function
def variable_that_changes_its_type(x, n):
    h = 0
    for _ in range(n):  # blamed
        h = h + x
    return h


@ps.function
def attribute_in_a_branch(x):
    if x.sum() > 0:
        Leaf.last = x  # blamed
    return x


@ps.function
def captured_list_in_a_loop(x, n):
    for _ in range(n):
        kept.append(x)  # blamed
    return x


def append_if_positive(values, x):
    if x.sum() > 0:  # blamed
        values.append(x)


@ps.function
def argument_that_grows(x):
    values = []
    append_if_positive(values, x)
    return x


@ps.function
def try_around_a_branch(x):
    try:
        if x.sum() > 0:  # blamed
            x = x + 1
    except ValueError:
        x = x - 1
    return x


@ps.function
def global_in_a_branch(x):
    global kept
    if x.sum() > 0:
        kept = x  # blamed
    return x


@ps.function
def raise_among_others(x):
    if x.sum() > 0:
        y = x
        raise ValueError(y)  # blamed
    return x


@ps.function
def traced_and_python(xs):
    total = xs[0]
    for x, factor in zip(xs, [1.0, 2.0]):  # blamed
        total = total + x * factor
    return total


@ps.function
def slice_of_a_growing_list(xs):
    values = []
    for x in xs:
        values.append(x)
    return values[1:]  # blamed


@ps.function
def asserted(n):
    assert n > 0, "n counts things"  # blamed
    return n * 2


kept = []

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
    "contents of a traced value": lambda: contents(x3),
    "traced value in numpy": lambda: through_numpy(x3),
    "change of an input": lambda: changes_its_input(x3),
    "result that is no tensor": lambda: returns_an_object(x3),  # blamed
    "too few arguments": lambda: add(x3),  # blamed
    "too few columns": lambda: add.map([x3]),  # blamed
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
    "variable of one branch": lambda: one_branch(x3),
    "variable of a loop": lambda: only_in_the_loop(x3, 2),
    "variable of two shapes": lambda: variable_of_two_shapes(x3),
    "value on one path only": lambda: value_on_one_path(x3),
    "variable that changes its type in a loop": lambda: variable_that_changes_its_type(x3, 2),
    "attribute assigned in a branch": lambda: attribute_in_a_branch(x3),
    "captured list changed in a loop": lambda: captured_list_in_a_loop(x3, 2),
    "argument that grows in a branch": lambda: argument_that_grows(x3),
    "try around a branch": lambda: try_around_a_branch(x3),
    "global assigned in a branch": lambda: global_in_a_branch(x3),
    "raise in a branch": lambda: raise_among_others(x3),
    "traced and Python sequences side by side": lambda: traced_and_python(x3),
    "slice of a list that grows": lambda: slice_of_a_growing_list(x3),
    "assertion": lambda: asserted(-1),
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


def test_what_starts_threads_and_worker_processes_is_not_blamed() -> None:
    with ThreadPoolExecutor() as pool:
        error = pool.submit(add.map, [x3, x3], [x3]).exception()
    assert "all columns must have the same number of instances" in str(error)
    assert ".py" not in str(error)
    process = multiprocessing.process.BaseProcess(target=add.map, args=([x3, x3], [x3]))
    assert "at messages.py, in raised_by" in text_of(raised_by(process.run))
