"""Plain Python control flow on traced values gives the values that Python gives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn, tensor

import penstock as ps
from tests.semantics.agreement import assert_agree

#: Each program with the arguments of its instances.
PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {}


def program(*rows: tuple[Any, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[fn.__name__] = fn, list(rows)
        return fn

    return add


floats = [(tensor(value),) for value in (3.0, 1.0, -1.0, 1.5, 0.2, 40.0)]
pairs = [(tensor(a), tensor(b)) for a, b in ((1, 2), (-1, 2), (5, 2), (3, 30), (0, 0), (2, 2))]
rows = [(tensor(values),) for values in ([1.0, -2.0, 3.0], [4.0], [-1.0, -1.0], [5.0, 1.0])]


@program(*floats)
def partial_return(x):
    if x > 0:
        if x > 2:
            return x * 10
        x = x + 1
    y = x * 3
    if y > 5:
        return y
    return -y


@program(*pairs)
def while_else(a, b):
    k, found = 0, -1
    while k < b:
        if k * k > 50:
            found = k
            break
        k += 1
    else:
        found = a
    return k, found


@program(*rows)
def for_else(xs):
    found = tensor(0.0)
    for x in xs:
        if x > 3:
            found = x * 2
            break
        found = x
    else:
        found = found - 1
    return found


@program(*rows)
def first_match(xs):
    for i, x in enumerate(xs):
        if x > 2:
            return i, x
    return -1, tensor(0.0)


@program((tensor(3), tensor(4)), (tensor(10), tensor(4)), (tensor(0), tensor(1)))
def nested_loops_with_exits(n, m):
    count = 0
    for i in range(n):
        for j in range(m):
            if j > i:
                break
            if (i + j) % 3 == 0:
                continue
            count = count + i * j
        if count > 20:
            return count, i
    return count, n


@program((tensor(3), tensor(4)), (tensor(10), tensor(4)), (tensor(0), tensor(1)))
def return_from_two_loops(n, m):
    for i in range(n):
        for j in range(m):
            if i * j == 6:
                return i, j
    return -1, -1


@program((tensor([1.0, 2.0]), tensor(3)), (tensor([1.0, 2.0, 4.0]), tensor(1)))
def return_of_a_sequence(xs, n):
    for i in range(n):
        if i == 2:
            return xs * i
        xs = xs + 1
    return xs


@program(*floats)
def exit_from_an_unrolled_loop(x):
    for k in range(4):
        x = x * 2
        if x > 5:
            return x, k
    return x, 9


@program(*floats)
def endless_loop_with_break(x):
    steps = 0
    while True:
        x = x / 2
        steps += 1
        if x < 1:
            break
    return x, steps


@program(*floats)
def loop_test_that_assigns(x):
    n = 0
    while (y := x / 2) > 1:
        x = y
        n += 1
    return x, n


@program(*pairs)
def truth_values(a, b):
    result = 0
    if (a > 0 and b > 0) or not (a < b):
        result = 1
    if 0 < a <= b < 10:
        result = result + 10
    if a in (1, 2, 3):
        result = result + 100
    return result, a and b, a or b, not a


@program(
    (tensor([1.0, 2.0, 3.0]), tensor(2.5)),
    (tensor([1.0, 2.0]), tensor(9.0)),
    (tensor([5.0]), tensor(2.0)),
)
def operands_that_must_not_run(xs, limit):
    i = 0
    while i < len(xs) and xs[i] < limit:
        i += 1
    return i


@program(*pairs)
def python_functions(a, b):
    return max(a, b, 3), min(a, b), abs(a), int(a), float(b), bool(a)


@program(*pairs)
def ranges(a, b):
    total = 0
    for i in range(a, b):
        total += i
    for i in range(b, a, -2):
        total += i * 10
    for i in range(0, b, 3):
        total += i * 100
    for i in reversed(range(a, b)):
        total = total * 2 + i
    return total


@program((tensor([1.0, 2.0, 3.0]), tensor([4.0, 5.0, 6.0])), (tensor([1.0]), tensor([2.0])))
def side_by_side(xs, ys):
    total = xs.new_zeros(())
    for i, (x, y) in enumerate(zip(xs, ys)):
        total += x * y * i
    for x in reversed(xs):
        total = total * 2 + x
    return total, torch.stack([x * y for x, y in zip(xs, ys)]), sum(x * 2 for x in xs)


@program(*rows)
def lists(xs):
    kept = [x * 2 for x in xs if x > 0]
    pairs = []
    for x in kept:
        pairs.append((x, x + 1))
    total = 0.0
    for a, b in pairs:
        total = total + a * b
    return total, len(kept), torch.stack(kept).sum() if kept else tensor(0.0)


@program(*rows)
def as_many_as_there_were(xs):
    outputs, total = [], xs.new_zeros(())
    for i, x in enumerate(xs):
        total = total + x * i
        outputs.append(total)
    squares = []
    for i in range(len(xs)):
        squares.append(xs[i] * xs[i])
    return (
        torch.stack(outputs) * xs,
        torch.stack([x + 1 for x in xs]) * xs,
        torch.stack(squares) + xs,
    )


@program(*rows)
def a_stack(xs):
    stack = []
    for x in xs:
        if x < 0 and len(stack) > 0:
            stack.append(stack.pop() + x)
        else:
            stack.append(x)
    return torch.stack(stack), stack[-1], stack[0]


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@program(*rows)
def lists_of_tuples(xs):
    states = [Pair(xs[0], xs[0] * 2)]
    for x in xs:
        states.append(Pair(states[-1].second, x))
    return states[-1], torch.stack([state.first for state in states])


@program(*rows)
def elements_of_a_list(xs):
    seen = [xs[0] * 0, xs[0]]
    for x in xs:
        if x > 0:
            seen[0] = seen[0] + x
        else:
            seen[1] = x
    return seen


@program((tensor(3),), (tensor(0),))
def items_of_a_dict(n):
    state = {"count": 0, "value": tensor(1.0)}
    while state["count"] < n:
        state["count"] = state["count"] + 1
        state["value"] = state["value"] * 2
    return state


@program((tensor([1.0, 2.0]), tensor(3)), (tensor([1.0, 2.0]), tensor(0)))
def changes_in_place(x, n):
    total = torch.zeros(2)
    for i in range(n):
        total += x
        total[0] = i
        total[i % 2] = total[i % 2] - 1
    return total


@program((tensor([1.0]), tensor(1)), (tensor([-5.0]), tensor(2)))
def choice_by_number(x, k):
    return [x, x * 2, x * 3][k], [torch.sin, torch.cos, lambda y: y if y.sum() > 0 else -y][k](x)


@program(*((tensor(k), tensor(3.0)) for k in (0, 1, 2, 5)))
def cases(k, x):
    match k:
        case 0:
            return x
        case 1 | 2:
            return x * 2
        case _:
            return -x


@program(*floats)
def closures(x):
    total = x

    def add(value):
        return total + value

    for k in range(3):
        if x > 0:
            total = add(k)
    scale = lambda value, factor=2: value * factor if value > 0 else value  # noqa: E731
    return scale(total)


def larger(a, b):
    return a if a > b else b


@program(*floats)
def partials(x):
    return functools.partial(larger, tensor(2.0))(x)


def plus_one(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        return fn(*args) + 1

    return wrapper


@plus_one
def absolute(x):
    return x if x > 0 else -x


@program(*floats)
def decorated_helpers(x):
    return absolute(x)


class Scale:
    __factor = 3

    def apply(self, x):
        return x if x > 0 else -x

    def __call__(self, x):
        if x > 1:
            return self.apply(x) * self.__factor
        return x


class Larger(Scale):
    def apply(self, x):
        if x > 10:
            return super().apply(x) * 2
        return super().apply(x)


@program(*floats)
def methods_and_super(x):
    return Larger().apply(x), Larger()(x)


class Halving(nn.Module):
    def forward(self, x):
        while x.abs().sum() > 1:
            x = x / 2
        return x


layers = nn.Sequential(Halving(), nn.Tanh(), nn.Sequential(Halving()))


@program(*rows)
def modules(xs):
    return layers(xs)


@program(*floats)
def modules_in_a_loop(x):
    while x.abs() < 4:
        x = layers(x) + 5
    return x


@program(*floats)
def contexts(x):
    with torch.no_grad():
        if x > 1:
            return x * 2
        x = x + 1
    return x * 3


def countdown(n, x):
    if n == 0:
        return x
    return countdown(n - 1, x * 2 if x < 5 else x)


@program(*floats)
def recursion_that_python_decides(x):
    return countdown(3, x)


def digits(n):
    if n < 10:
        return 1
    return 1 + digits(n // 10)


@program((tensor(7),), (tensor(123),), (tensor(99999),))
def recursion_of_a_helper(n):
    return digits(n)


def is_even(n):
    return True if n == 0 else is_odd(n - 1)


def is_odd(n):
    return False if n == 0 else is_even(n - 1)


@program((tensor(4),), (tensor(7),), (tensor(0),))
def recursion_of_two_helpers(n):
    return is_even(n)


@program(*rows)
def all_and_any(xs):
    return any(x > 2 for x in xs), all(x > 0 for x in xs)


@program(*floats)
def variables_of_one_branch(x):
    if x > 1:
        once = x * 2
        x = once + 1
    for _ in range(2):
        inner = x + 1
        x = inner
    return x


@program(*floats)
def checks(x):
    assert x > -100, "too small"
    if x > 1000:
        raise ValueError("too large")
    return x + 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_those_of_python(name) -> None:
    fn, instances = PROGRAMS[name]
    expected = [fn(*row) for row in instances]
    traced = ps.function(fn)
    with ps.set_eager(True):
        eager = [traced(*row) for row in instances]
    columns = [list(column) for column in zip(*instances, strict=True)]
    ways = {"eager": eager, "call": [traced(*row) for row in instances]}
    ways["map"] = traced.map(*columns)
    for way, outputs in ways.items():
        for number, (left, right) in enumerate(zip(outputs, expected, strict=True)):
            assert_agree(left, right, f"{way}, instance {number}")
