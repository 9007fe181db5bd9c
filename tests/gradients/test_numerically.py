"""First and second derivatives of small programs, checked against finite differences."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import penstock as ps


def made(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@ps.function
def loop(x, w, n):
    def step(k, h):
        return k + 1, torch.tanh(h @ w) + x

    return ps.while_loop(lambda k, h: k < n, step, (0, x))[1]


@ps.function
def branch(x, w):
    return ps.cond(x.sum() > 0, lambda: (x @ w).sin(), lambda: (x * x) @ w)


@ps.function
def choice(x, w, which):
    return ps.switch(which, [lambda: x @ w, lambda: x * x, lambda: torch.exp(x) @ w])


@ps.function
def power(x, w, n):
    return ps.cond(n == 0, lambda: x, lambda: torch.tanh(power(x, w, n - 1) @ w))


@ps.function
def tree(x, w, depth):
    def inner():
        left, right = tree(x @ w, w, depth - 1), tree(x * 0.5, w, depth - 1)
        return torch.tanh(left * right)

    return ps.cond(depth == 0, lambda: x.sin(), inner)


@ps.function
def array(x, w, n):
    def write(k, h, cells):
        return k + 1, torch.tanh(h @ w), cells.write(k, h)

    cells = ps.TensorArray(n, like=x)
    _, _, cells = ps.while_loop(lambda k, h, cells: k < n, write, (0, x, cells))
    return cells.read(0) * cells.read(n - 1) + cells.read(n // 2).sin()


@ps.function
def scan(x, w):
    def step(h, row):
        h = torch.tanh(h @ w + row)
        return h, h * h

    last, rows = ps.scan(step, x[0], x)
    return last + rows.sum(0)


@ps.function
def attention(x, w):
    scores = (x @ w) @ x.mT / 2
    return (torch.softmax(scores, -1) @ x).sum(0)


@ps.function
def each(x, w):
    return ps.map_fn(lambda row: torch.tanh(row @ w) * row, x).sum(0)


PROGRAMS = {
    "loop": (loop, [made(2, seed=k) for k in range(3)], [[0, 2, 3]]),
    "branch": (branch, [made(2, seed=k) for k in range(4)], []),
    "switch": (choice, [made(2, seed=k) for k in range(4)], [[0, 1, 2, 1]]),
    "recursion": (power, [made(2, seed=k) for k in range(3)], [[0, 1, 3]]),
    "tree": (tree, [made(2, seed=k) for k in range(3)], [[0, 1, 2]]),
    "array": (array, [made(2, seed=k) for k in range(3)], [[1, 2, 4]]),
    "scan": (scan, [made(length, 2, seed=length) for length in (1, 3, 2)], []),
    "attention": (attention, [made(length, 2, seed=length) for length in (2, 3, 1)], []),
    "map_fn": (each, [made(length, 2, seed=length) for length in (1, 3, 2)], []),
}


def as_function_of_tensors(name):
    """The map as a function of the weight and the inputs, and the tensors to give to it."""
    program, inputs, columns = PROGRAMS[name]

    def run(w, *xs):
        return tuple(program.map(list(xs), [w] * len(xs), *columns))

    return run, [t.clone().requires_grad_() for t in (made(2, 2, seed=9), *inputs)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_first_derivatives_equal_finite_differences(name):
    run, tensors = as_function_of_tensors(name)
    assert gradcheck(run, tensors)


@pytest.mark.parametrize("name", PROGRAMS)
def test_second_derivatives_equal_finite_differences(name):
    run, tensors = as_function_of_tensors(name)
    assert gradgradcheck(run, tensors)
