"""What a function may return."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import torch
from torch import nn

from tests.existing_code.harness import Table

TABLE = Table()

Pair = namedtuple("Pair", "first second")


@TABLE.program
def several_outputs(make):
    return lambda x: (x.sin(), x.sum(), x > 0), make.tensors(3, 2)


@TABLE.program
def nested_outputs(make):
    def nest(x):
        return {"a": [x.sin(), {"b": (x.cos(), None, 3)}], "c": Pair(x, "text"), "d": ()}

    return nest, make.tensors(3, 2)


@TABLE.program
def an_ordered_dict(make):
    return lambda x: OrderedDict(z=x * 2, a=x), make.tensors(2, 2)


@TABLE.program
def nothing_returned(make):
    def run(x):
        x.sin()

    return run, make.tensors(3, 2)


@TABLE.program
def python_numbers(make):
    return lambda x, n: (n * 2, float(n), n > 1, "s" * n), make.tensors(3, 2), [1, 2, 3]


@TABLE.program
def different_structures(make):
    def run(x, kind):
        return {"tensor": lambda: x * 2, "pair": lambda: (x, x), "none": lambda: None}[kind]()

    return run, make.tensors(3, 2), ["tensor", "pair", "none"]


@TABLE.program
def different_shapes(make):
    return lambda x: torch.tanh(x) @ x.t(), make.sentences((2, 4, 3, 4), 2)


@TABLE.program
def different_dtypes(make):
    rows = [make.tensor(2), make.integers(5, 2), make.integers(2, 2).bool()]
    return lambda x: (x * 2, x.dtype == torch.float64), rows


@TABLE.program
def scalars_and_empty_tensors(make):
    rows = [make.tensor(), make.tensor(0), make.tensor(0, 3), make.tensor(1)]
    return lambda x: (x * 2 + 1, x.sum()), rows


@TABLE.program
def an_input_returned_unchanged(make):
    rows = make.tensors(3, 2)
    return lambda x, keep: x if keep else x * 2, rows, [True, False, True]


@TABLE.program
def an_output_of_all_instances(make):
    constant = make.tensor(2)
    shared = []

    def run(x):
        if not shared:
            shared.append(constant * 2)
        return shared[0], x * shared[0]

    return run, make.tensors(3, 2)


@TABLE.program
def the_same_output_twice(make):
    def run(x):
        y = x * 2
        return y, y, [y]

    return run, make.tensors(3, 2)


@TABLE.program
def a_parameter_returned(make):
    layer = make.module(nn.Linear(2, 2))
    return lambda x: (layer.weight, layer(x), layer.bias * 1), make.tensors(3, 2)


@TABLE.program
def a_constant_returned(make):
    return lambda x: (torch.ones(2), torch.arange(3), x), make.tensors(3, 2)


@TABLE.program
def a_detached_output(make):
    return lambda x: ((x * 2).detach(), x * 3), make.tensors(3, 2)


@TABLE.program
def a_value_of_an_earlier_instance(make):
    previous = [make.tensor(2)]

    def run(x):
        previous.append(torch.tanh(previous[-1] * x))
        return previous[-1]

    return run, make.tensors(4, 2)


@TABLE.program
def one_instance(make):
    w = make.tensor(2, 2)
    return lambda x: torch.tanh(x @ w), make.tensors(1, 2)


@TABLE.program
def the_same_tensor_for_all_instances(make):
    x = make.tensor(2)
    return lambda x, k: x * k, [x] * 3, [1.0, 2.0, 3.0]


@TABLE.program
def operations_on_parameters_alone(make):
    w = make.tensor(3, 3)
    return lambda x: x @ (w @ w.t()).softmax(0), make.tensors(3, 3)


@TABLE.program
def values_that_nobody_uses(make):
    def run(x):
        (x.log() * 0).sqrt()
        return x * 2

    return run, make.tensors(3, 2)


@TABLE.program
def a_branch_that_would_be_nan(make):
    def run(x):
        y = x.sum()
        return torch.sqrt(y) if y > 0 else 3 * y

    return run, make.tensors(4, 2)
