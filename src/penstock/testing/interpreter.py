"""The meaning of a program, as a plain interpreter for one instance.

Every value is a tensor, and a TensorArray is a tuple of tensors or None. Nothing is batched,
planned or optimised: this is what all other ways to run a program must agree with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch

from penstock.calls.replay import call
from penstock.capture.worlds import dtype_called
from penstock.errors import IndexRangeError, PredicateError
from penstock.ir.graph import BODY
from penstock.ir.program import (
    ArrayNew,
    ArrayRead,
    ArraySize,
    ArrayStack,
    ArrayUnstack,
    ArrayWrite,
    AsSequence,
    Body,
    Branch,
    Call,
    Captured,
    Constant,
    Element,
    ForEach,
    Loop,
    Node,
    Program,
    RandomKey,
    Size,
    TorchCall,
    Value,
)
from penstock.ir.types import ArrayType, TensorType
from penstock.plan.random_keys import as_keys, as_signed, mix

Environment = dict[Value, Any]


def interpret(
    program: Program,
    inputs: Sequence[torch.Tensor],
    captures: Sequence[torch.Tensor] = (),
    seed: int = 0,
) -> list[Any]:
    """The outputs of the program's entry for one instance."""
    return _Interpreter(program, captures).run(program.entry.body, inputs, {}, (seed, 0))


class _Interpreter:
    def __init__(self, program: Program, captures: Sequence[torch.Tensor]) -> None:
        self._program = program
        self._captures = captures

    def run(
        self, body: Body, inputs: Sequence[Any], outer: Environment, path: tuple[int, ...]
    ) -> list[Any]:
        """The outputs of a body; `path` names this run of it for random keys."""
        environment = {**outer, **dict(zip(body.inputs, inputs, strict=True))}
        for node in body.nodes:
            values = [environment[value] for value in node.inputs]
            outputs = self._node(node, values, environment, path)
            environment.update(zip(node.outputs, outputs, strict=True))
        return [environment[value] for value in body.outputs]

    def _node(
        self, node: Node, values: list[Any], environment: Environment, path: tuple[int, ...]
    ) -> Sequence[Any]:
        path = (*path, *node.site)
        match node.operation:
            case TorchCall() as operation:
                return call(operation, values)
            case Captured(index=index):
                return [self._captures[index]]
            case RandomKey():
                return [torch.tensor(_mixed(path))]
            case Branch(bodies=bodies, is_cond=is_cond):
                number = _truth(values[0]) if is_cond else _branch_number(values[0], len(bodies))
                return self.run(bodies[number], (), environment, (*path, number))
            case Call(function=name):
                return self.run(self._program.function(name).body, values, {}, path)
            case Loop() as loop:
                return self._loop(loop, values, environment, path)
            case ForEach(body=body):
                return self._for_each(body, values, environment, path)
            case Constant() | ArrayStack():
                return [_TYPED[type(node.operation)](node, *values)]
            case operation:
                return [_SIMPLE[type(operation)](operation, *values)]

    def _loop(
        self, loop: Loop, values: list[Any], environment: Environment, path: tuple[int, ...]
    ) -> list[Any]:
        limit = math.inf if loop.maximum_iterations is None else loop.maximum_iterations
        iteration = 0
        while iteration < limit:
            inner = (*path, iteration)
            if not _truth(self.run(loop.condition, values, environment, inner)[0]):
                break
            values = self.run(loop.body, values, environment, (*inner, BODY))
            iteration += 1
        return values

    def _for_each(
        self, body: Body, values: list[Any], environment: Environment, path: tuple[int, ...]
    ) -> list[Any]:
        rows = [
            self.run(body, elements, environment, (*path, number, BODY))
            for number, elements in enumerate(zip(*values, strict=True))
        ]
        if not rows:
            return [() for _ in body.outputs]
        return [tuple(column) for column in zip(*rows, strict=True)]


def _truth(value: torch.Tensor) -> int:
    number = value.item()
    if math.isnan(number):
        raise PredicateError("a predicate is NaN")
    return int(bool(number))


def _branch_number(value: torch.Tensor, count: int) -> int:
    number = int(value)
    if not 0 <= number < count:
        raise IndexRangeError(f"switch: index {number} is out of range for {count} branches")
    return number


def _constant(node: Node) -> torch.Tensor:
    type_ = node.outputs[0].type
    assert isinstance(node.operation, Constant)
    assert isinstance(type_, TensorType)
    return torch.tensor(node.operation.value, dtype=dtype_called(type_.dtype), device=type_.device)


def _stack(node: Node, array: tuple[Any, ...]) -> torch.Tensor:
    if any(element is None for element in array):
        raise IndexRangeError("stack: an element was never written")
    if array:
        return torch.stack(array)
    type_ = node.inputs[0].type
    assert isinstance(type_, ArrayType)
    assert type_.element is not None
    shape = [0 if isinstance(size, str) else size for size in type_.element.shape]
    return torch.empty((0, *shape), dtype=dtype_called(type_.element.dtype))


def _element(operation: Element, sequence: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    if not -len(sequence) <= int(index) < len(sequence):
        raise IndexRangeError(f"index {int(index)} is out of range for {len(sequence)} elements")
    return sequence[int(index)]


def _read(operation: ArrayRead, array: tuple[Any, ...], index: torch.Tensor) -> torch.Tensor:
    position = int(index)
    if not 0 <= position < len(array) or array[position] is None:
        raise IndexRangeError(f"element {position} of {len(array)} is not there or never written")
    element: torch.Tensor = array[position]
    return element


def _write(
    operation: ArrayWrite, array: tuple[Any, ...], index: torch.Tensor, element: Any
) -> tuple[Any, ...]:
    position = int(index)
    if position < 0:
        raise IndexRangeError(f"write: index {position} is out of range")
    filled = list(array) + [None] * (position + 1 - len(array))
    filled[position] = element
    return tuple(filled)


def _mixed(path: tuple[int, ...]) -> int:
    seed, *salts = path
    return int(as_signed(reduce(mix, salts, as_keys(seed))))


_TYPED: dict[type, Callable[..., Any]] = {Constant: _constant, ArrayStack: _stack}

_SIMPLE: dict[type, Callable[..., Any]] = {
    Size: lambda operation, tensor: torch.tensor(tensor.shape[operation.dimension]),
    AsSequence: lambda operation, tensor: tensor,
    Element: _element,
    ArrayNew: lambda operation, size: (None,) * int(size),
    ArrayUnstack: lambda operation, sequence: tuple(sequence),
    ArrayRead: _read,
    ArrayWrite: _write,
    ArraySize: lambda operation, array: torch.tensor(len(array)),
}
