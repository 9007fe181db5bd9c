"""Choosing what to run: experts, a bytecode interpreter, nested branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import penstock as ps
from tests.semantics.table import Case, Maker, table_program


@table_program(torch.float32, torch.float64)
def two_experts_of_eight(make: Maker) -> Case:
    """The two experts with the highest scores, mixed by a softmax of their scores."""
    router = make.weight("router", 3, 8, scale=2.0)
    weights = [make.weight(f"expert{k}", 3, 3) for k in range(8)]

    def expert(k: int) -> Callable[[Tensor], Tensor]:
        return lambda x: torch.tanh(x @ weights[k]) * (k + 1)

    experts = [expert(k) for k in range(8)]

    def plain(x: Tensor) -> Tensor:
        scores, chosen = (x @ router).topk(2)
        share = torch.softmax(scores, 0)
        return share[0] * experts[chosen[0]](x) + share[1] * experts[chosen[1]](x)

    @ps.function
    def traced(x: Tensor) -> Tensor:
        scores, chosen = (x @ router).topk(2)
        share = torch.softmax(scores, 0)
        first = ps.switch(chosen[0], experts, (x,))
        second = ps.switch(chosen[1], experts, (x,))
        return share[0] * first + share[1] * second

    return Case(plain, traced, [(make.normal(3),) for _ in range(10)])


@table_program(torch.int64, torch.float64, differentiable=False)
def bytecode_interpreter(make: Maker) -> Case:
    """Five operations over an accumulator and a counter; each instance runs its own program."""

    def add(pc: Any, arg: Tensor, acc: Tensor, count: Any) -> tuple[Any, ...]:
        return pc + 1, acc + arg, count

    def multiply(pc: Any, arg: Tensor, acc: Tensor, count: Any) -> tuple[Any, ...]:
        return pc + 1, acc * arg, count

    def negate(pc: Any, arg: Tensor, acc: Tensor, count: Any) -> tuple[Any, ...]:
        return pc + 1, -acc, count

    def repeat(pc: Any, arg: Tensor, acc: Tensor, count: Any) -> tuple[Any, ...]:
        goes_back = (count > 0).to(torch.int64)
        return pc + 1 - (arg + 1) * goes_back, acc, count - goes_back

    def skip(pc: Any, arg: Tensor, acc: Tensor, count: Any) -> tuple[Any, ...]:
        return pc + 1 + (count % 2 == arg % 2).to(torch.int64), acc, count

    operations = [add, multiply, negate, repeat, skip]

    def plain(code: Tensor, args: Tensor, acc: Tensor, count: Tensor) -> Tensor:
        pc = torch.tensor(0)
        while pc < len(code):
            pc, acc, count = operations[code[pc]](pc, args[pc], acc, count)
        return acc

    @ps.function
    def traced(code: Tensor, args: Tensor, acc: Tensor, count: Any) -> Tensor:
        return ps.while_loop(
            lambda pc, acc, count: pc < code.shape[0],
            lambda pc, acc, count: ps.switch(code[pc], operations, (pc, args[pc], acc, count)),
            (0, acc, count),
        )[1]

    def program(length: int) -> tuple[Any, ...]:
        code = make.integers(0, 5, length)
        args = torch.minimum(make.integers(0, 4, length), torch.arange(length))
        acc = make.integers(-3, 4, 2).to(make.dtype)
        return code, args, acc, make.integers(0, 5)

    return Case(plain, traced, [program(length) for length in (6, 4, 0, 9, 12, 9, 1, 12)])


@table_program(torch.float32, torch.float64, torch.bfloat16)
def nested_branches(make: Maker) -> Case:
    """Branches in branches over 0-d values, with nested results and an untaken square root."""

    def plain(x: Tensor, flag: bool, k: int) -> dict[str, Any]:
        root = torch.sqrt(x) if x > 0 else 3 * x
        if flag:
            pair = (root, k) if k > 1 else (root * 2, k + 10)
        else:
            pair = (x * x, -k)
        return {"pair": pair, "flag": not flag}

    @ps.function
    def traced(x: Tensor, flag: Any, k: Any) -> dict[str, Any]:
        root = ps.cond(x > 0, lambda: torch.sqrt(x), lambda: 3 * x)
        pair = ps.cond(
            flag,
            lambda: ps.cond(k > 1, lambda: (root, k), lambda: (root * 2, k + 10)),
            lambda: (x * x, -k),
        )
        return {"pair": pair, "flag": ~flag}

    values = [(0.0, True, 2), (2.0, True, 0), (-1.5, False, 3), (0.0, True, 1), (4.0, False, 0)]
    values += [(1.0, True, 5), (-2.0, True, 5), (0.25, False, 2)]
    return Case(
        plain,
        traced,
        [(make.tensor(x), flag, k) for x, flag, k in values],
    )


@table_program(torch.float64)
def branches_with_different_inputs(make: Maker) -> Case:
    """Each branch reads its own input, so that the other input gets no gradient."""
    left, right = make.weight("left", 3), make.weight("right", 3)

    def plain(index: int, x: Tensor, y: Tensor) -> Tensor:
        return [x * left, y * right, x * y][index]

    @ps.function
    def traced(index: Any, x: Tensor, y: Tensor) -> Tensor:
        return ps.switch(index, [lambda: x * left, lambda: y * right, lambda: x * y])

    return Case(plain, traced, [(k, make.normal(3), make.normal(3)) for k in (0, 1, 2, 1, 0, 0)])
