"""Converted code that meets no traced value does what the original does, errors included."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from penstock.capture.converted import operators
from penstock.conversion.compile import conversion_of, converted_function


def guard_clauses(a, b):
    if a < 0:
        return "negative"
    if a == 0:
        if b == 0:
            return "zero"
        b = b + 1
    elif b > 2:
        return b
    return a + b


def partial_returns(a, b):
    if a > 1:
        if b > 1:
            return a * b
        a = a + 10
    else:
        with contextlib.nullcontext():
            if b == 0:
                return -1
        b = b + 100
    return a, b


def loops_with_everything(a, b):
    found = []
    for i in range(a):
        if i == 1:
            continue
        for j in range(b):
            if j == 2:
                break
            if i * j == 6:
                return found, i, j
            found.append((i, j))
        else:
            found.append("whole")
        if len(found) > 8:
            break
    else:
        found.append("all")
    return found


def while_with_else(a, b):
    while a > 0:
        a -= 1
        if a == b:
            break
        if a == 3:
            continue
        b += 1
    else:
        return "ran out", b
    return a, b


def continue_in_nested_branches(a, b):
    total = 0
    for i in range(a):
        if i % 2:
            if i > b:
                continue
            total += 1
        total += 10
    return total


def handlers(a, b):
    try:
        if b == 0:
            return "early"
        result = a // (b - 1)
    except ZeroDivisionError as error:
        result = type(error).__name__
    else:
        result = result + 100
    finally:
        a = None
    return result, a


def break_out_of_try(a, b):
    for i in range(a):
        try:
            if i == b:
                break
            1 // (i - 2)
        except ZeroDivisionError:
            continue
        finally:
            b = b
    return i if a else None


def closures_and_defaults(a, b):
    total = a

    def add(x, factor=b):
        nonlocal total
        if x > 1:
            total = total + x * factor
        return total

    for k in range(3):
        add(k)
    return total, (lambda x, y=3: x if x > y else y)(a)


def unbound(a, b):
    if a > b:
        value = a
    return value


def deleted(a, b):
    value = a
    if b > 1:
        del value
    return value


def short_circuits(a, b):
    seen = []

    def note(x):
        seen.append(x)
        return x

    (note(a) and note(b)) or note(7)
    chained = 0 <= note(a) < note(b) < 3
    return seen, chained, not a, a in (1, 2), b not in [a], (a or b) and "x"


def walrus(a, b):
    count = 0
    while (rest := a - count) > 0:
        count += 1
        if rest == b and (found := count * 2) > 2:
            return found
    return rest, [last := x for x in range(b)], b and last


def comprehensions(a, b):
    pairs = [(x, y) for x in range(a) for y in range(b) if x != y]
    even = [x for x in range(b) if x % 2 == 0 if x > 0]
    return pairs, even, sum(x * y for x, y in zip(range(a), range(b))), {x: x for x in even}


def matches(a, b):
    match a:
        case 0:
            return "none"
        case 1 | 2 if b > 1:
            return "some"
        case None:
            return "never"
        case _:
            a = -a
    match (a, b):
        case (x, 0):
            return x
        case (_, y):
            return y, a


def endless(a, b):
    while True:
        a += 1
        if a > 5:
            return a
        if a == b:
            continue
        if a % 4 == 3:
            break
    return "broken", a


def mutation(a, b):
    state = {"a": a, "list": [b]}
    items = []
    for k in range(a):
        state["a"] += k
        state["list"].append(k)
        items += [k]
        items[0] = k
    x, *rest = [a, b, *items]
    return state, items, x, rest


def raising(a, b):
    if a < 0:
        raise ValueError(f"negative: {a}")
    for k in range(a):
        if k == b:
            raise KeyError(k)
    return a


def recursion(a, b):
    if a <= 0:
        return b
    return recursion(a - 1, b * 2) + recursion(a - 2, b)


def generator_inside(a, b):
    def numbers():
        for k in range(a):
            if k != b:
                yield k

    return list(numbers()), max(a, b, 2), min([a, b]), len(range(a if a > 0 else 0))


class Counter:
    __step = 2

    def __init__(self, start):
        self.start = start

    def count(self, limit):
        total = self.start
        while total < limit:
            total += self.__step
        return total


class Louder(Counter):
    def count(self, limit):
        if limit > 2:
            return super().count(limit) * 10
        return super().count(limit)


def methods(a, b):
    return Louder(a).count(b), Counter.count(Louder(b), a)


FUNCTIONS = [
    value
    for value in list(globals().values())
    if isinstance(value, FunctionType) and value.__module__ == __name__
]

VALUES = (-1, 0, 1, 2, 3, 4, 7)


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_converted_code_does_what_the_original_does(function) -> None:
    converted = converted_function(function, operators)
    assert converted is not function
    for a, b in itertools.product(VALUES, VALUES):
        assert outcome(converted, a, b) == outcome(function, a, b), (a, b)


@pytest.mark.parametrize("cls", [Counter, Louder])
def test_methods_keep_their_class_and_private_names(cls) -> None:
    converted = converted_function(cls.count, operators)
    for start, limit in itertools.product(VALUES, VALUES):
        made = cls(start)
        assert converted(made, limit) == made.count(limit)


def test_the_closure_is_shared_both_ways() -> None:
    count = 0

    def increase(by):
        nonlocal count
        if by > 0:
            count += by
        return count

    converted = converted_function(increase, operators)
    assert converted(2) == 2
    assert count == 2
    count = 10
    assert converted(1) == 11


def test_defaults_are_those_of_the_live_function() -> None:
    def scaled(x, factor=2, *, offset=1):
        return x * factor + offset if x else factor

    scaled.__defaults__ = (5,)
    converted = converted_function(scaled, operators)
    assert (converted(3), converted(0), converted(1, 1, offset=0)) == (16, 5, 1)


def test_conversion_happens_once_for_each_code_object() -> None:
    def make(n):
        return lambda x: x if x > n else n

    one, other = (converted_function(make(n), operators) for n in (1, 2))
    assert one.__code__ is other.__code__
    assert (one(0), other(0)) == (1, 2)
    assert conversion_of(make(3)) is conversion_of(make(4))
    assert converted_function(one, operators) is one
