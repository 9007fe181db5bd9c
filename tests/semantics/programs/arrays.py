"""TensorArrays as data structures: a parser's stack, versions that fork, arrays that grow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import penstock as ps
from tests.semantics.programs.cells import LSTMState, TreeLSTM
from tests.semantics.table import Case, Maker, table_program

HIDDEN, TOKENS = 4, 9


@table_program(torch.float64)
def shift_reduce_parser(make: Maker) -> Case:
    """A parser that shifts words and reduces pairs, with its stack in two TensorArrays."""
    cell = TreeLSTM(make, TOKENS, HIDDEN)

    def plain(words: Tensor, reduces: Tensor) -> LSTMState:
        stack, position = [], 0
        for reduce in reduces:
            if reduce:
                right, left = stack.pop(), stack.pop()
                stack.append(cell.inner(left, right))
            else:
                stack.append(cell.leaf(words[position]))
                position += 1
        return stack[0]

    @ps.function
    def traced(words: Tensor, reduces: Tensor) -> LSTMState:
        def top(state: Any, below: int) -> LSTMState:
            place = state["size"] - below
            return LSTMState(state["h"].read(place), state["c"].read(place))

        def push(state: Any, place: Any, value: LSTMState, position: Any) -> dict[str, Any]:
            h, c = state["h"].write(place, value.h), state["c"].write(place, value.c)
            return {"h": h, "c": c, "size": place + 1, "position": position}

        def shift(state: Any) -> dict[str, Any]:
            leaf = cell.leaf(words[state["position"]])
            return push(state, state["size"], leaf, state["position"] + 1)

        def reduce(state: Any) -> dict[str, Any]:
            value = cell.inner(top(state, 2), top(state, 1))
            return push(state, state["size"] - 2, value, state["position"])

        def body(t: Any, state: Any) -> tuple[Any, Any]:
            return t + 1, ps.cond(reduces[t], reduce, shift, (state,))

        empty = ps.TensorArray(words.shape[0], like=cell.bias.new_zeros(HIDDEN))
        start = {"h": empty, "c": empty, "size": 0, "position": 0}
        _, state = ps.while_loop(lambda t, state: t < reduces.shape[0], body, (0, start))
        return LSTMState(state["h"].read(0), state["c"].read(0))

    return Case(plain, traced, [sentence(make, n) for n in (1, 2, 3, 5, 7, 5, 8)])


def sentence(make: Maker, length: int) -> tuple[Tensor, Tensor]:
    """Words and a random valid sequence of shifts (False) and reduces (True)."""
    moves, waiting, depth = [], length, 0
    while waiting or depth > 1:
        reduce = depth > 1 and (waiting == 0 or make.integer(0, 2) == 1)
        moves.append(reduce)
        waiting, depth = (waiting, depth - 1) if reduce else (waiting - 1, depth + 1)
    return make.integers(0, TOKENS, length), torch.tensor(moves)


@table_program(torch.float64)
def forked_versions(make: Maker) -> Case:
    """Two versions written from one array live side by side and keep their own values."""
    weight = make.weight("weight", 2, 2)

    def plain(a: Tensor, b: Tensor, n: int) -> Tensor:
        def consume(values: list[Tensor]) -> Tensor:
            total = values[0]
            for k in range(n):
                values = [*values[:1], torch.tanh(values[k % 2] @ weight)]
                total = total * 0.5 + values[1]
            return total

        return consume([a, b]) - consume([b, b]) * 2 + b

    @ps.function
    def traced(a: Tensor, b: Tensor, n: Any) -> Tensor:
        def consume(array: Any) -> Tensor:
            def body(k: Any, total: Tensor, array: Any) -> tuple[Any, ...]:
                array = array.write(1, torch.tanh(array.read(k % 2) @ weight))
                return k + 1, total * 0.5 + array.read(1), array

            return ps.while_loop(lambda k, *_: k < n, body, (0, array.read(0), array))[1]

        old = ps.TensorArray(2).write(0, b).write(1, b)
        new = old.write(0, a)
        return consume(new) - consume(old) * 2 + old.read(0)

    return Case(plain, traced, [(make.normal(2), make.normal(2), n) for n in (0, 1, 2, 5, 3, 3)])


@table_program(torch.float64, torch.float32)
def growing_array(make: Maker) -> Case:
    """An array that starts empty and grows until its sum is large enough."""

    def plain(x: Tensor) -> tuple[Tensor, Any]:
        values, total = [], torch.zeros_like(x)
        while total < 5:
            values.append(x * (len(values) + 1))
            total = total + values[-1]
        weighted = torch.zeros_like(x)
        for k, value in enumerate(values):
            weighted = weighted + value * value * k
        return weighted, len(values)

    @ps.function
    def traced(x: Tensor) -> tuple[Tensor, Any]:
        def grow(values: Any, total: Tensor, k: Any) -> tuple[Any, ...]:
            value = x * (k + 1)
            return values.write(k, value), total + value, k + 1

        empty = ps.TensorArray(0, dynamic_size=True, like=x)
        values, _, _ = ps.while_loop(
            lambda values, total, k: total < 5, grow, (empty, torch.zeros_like(x), 0)
        )
        weighted, _ = ps.while_loop(
            lambda weighted, k: k < values.size(),
            lambda weighted, k: (weighted + values.read(k) * values.read(k) * k, k + 1),
            (torch.zeros_like(x), 0),
        )
        return weighted, values.size()

    values = (6.0, 0.3, 1.1, 0.7, 2.3, 0.11)
    return Case(plain, traced, [(make.tensor(x),) for x in values])


@table_program(torch.int64, torch.bool, differentiable=False)
def unstacked_permutation(make: Maker) -> Case:
    """Rows of a table, of 0-d values or of vectors, put into another order by two arrays."""

    def plain(rows: Tensor, order: Tensor) -> Tensor:
        result = rows.clone()
        for k, place in enumerate(order):
            result[place] = rows[k]
        return result

    @ps.function
    def traced(rows: Tensor, order: Tensor) -> Tensor:
        source = ps.TensorArray.unstack(rows)
        _, target = ps.while_loop(
            lambda k, target: k < order.shape[0],
            lambda k, target: (k + 1, target.write(order[k], source.read(k))),
            (0, source),
        )
        return target.stack()

    def instance(*shape: int) -> tuple[Tensor, Tensor]:
        rows = make.integers(0, 2, *shape).to(make.dtype)
        return rows, make.permutation(shape[0])

    shapes = [(3,), (0,), (4, 2), (1,), (4, 2), (2, 0), (6,)]
    return Case(plain, traced, [instance(*shape) for shape in shapes])


@table_program(torch.float64)
def stacked_sequences(make: Maker) -> Case:
    """An array of whole sequences, stacked: both dimensions differ from instance to instance."""

    def plain(x: Tensor, n: int) -> Tensor:
        rows = [x * (i + 1) for i in range(n + 1)]
        return torch.stack(rows) * x[n]

    @ps.function
    def traced(x: Tensor, n: Any) -> Tensor:
        def body(i: Any, array: Any) -> tuple[Any, Any]:
            return i + 1, array.write(i, x * (i + 1))

        empty = ps.TensorArray(n + 1, like=x)
        _, array = ps.while_loop(lambda i, _: i <= n, body, (0, empty))
        return array.stack() * x[n]

    sizes = ((3, 1), (4, 0), (2, 1), (3, 2), (6, 4), (3, 1))
    return Case(plain, traced, [(make.normal(size), n) for size, n in sizes])


@table_program(torch.float64)
def array_of_vectors_read_element_by_element(make: Maker) -> Case:
    """Arrays that begin with a vector that is also read by element, or end with one."""

    def plain(rows: Tensor, start: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        if k % 2 == 0:
            first, second = start, rows[k]
        else:
            first, second = rows[k], start
        return first * 2, second * 3, start[k]

    @ps.function
    def traced(rows: Tensor, start: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first = ps.TensorArray(2).write(0, start).write(1, rows[k])
        second = ps.TensorArray(2).write(0, rows[k]).write(1, start)
        return first.read(k % 2) * 2, second.read(k % 2) * 3, start[k]

    sizes = [(4, 2), (3, 0), (5, 1), (3, 2), (6, 1), (4, 0)]
    instances = [(make.normal(n, 3), make.normal(3), k) for n, k in sizes]
    return Case(plain, traced, instances)
