"""Windows of counted loops: several iterations become one, while that many are left.

A loop that counts up to a bound is preceded by a copy of itself that runs a window of iterations at
a time and stops where fewer are left, which the loop then runs one by one. What a window computes
is one straight line, so that it can be one launch. Loops qualify whose iterations are straight
lines already and draw nothing at random, since draws go by the number of the iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import prod
from typing import Any

from penstock.ir.program import (
    ArrayRead,
    ArraySize,
    ArrayWrite,
    Body,
    Captured,
    Constant,
    Element,
    Function,
    Loop,
    Node,
    Operand,
    Operation,
    Program,
    Size,
    TorchCall,
    Value,
)
from penstock.ir.types import TensorType

#: Iterations of a window, at most, and torch calls in it, at most: what is traced and compiled
#: grows with them.
WINDOW, MOST_CALLS = 8, 96

#: What a straight line may hold.
_STRAIGHT = (TorchCall, Constant, Captured, Size, Element, ArrayRead, ArrayWrite, ArraySize)

#: Comparisons that hold for every smaller counter too, by the place of the counter.
_UPPER = {"torch.Tensor.lt": 0, "torch.Tensor.le": 0, "torch.Tensor.gt": 1, "torch.Tensor.ge": 1}

_ADD = "torch.Tensor.add"

#: Bytes of one element, for the dtypes that need fewer than eight.
_WIDTHS = {"bool": 1, "uint8": 1, "int8": 1, "int16": 2, "float16": 2, "bfloat16": 2}
_WIDTHS |= {"int32": 4, "float32": 4}


def open_windows(program: Program) -> Program:
    """The program with windows before its counted loops; itself where it has none."""
    opening = _Opening(count(program.highest_number + 1))
    functions = tuple(
        Function(function.name, opening.body(function.body), function.source)
        for function in program.functions
    )
    return replace(program, functions=functions) if opening.windows else program


def window_bytes(program: Program) -> int | None:
    """Bytes that the largest window computes for one instance; None where sizes are not known."""
    nodes = [node for function in program.functions for node in function.body.walk()]
    sizes = [_bytes(node.operation.body, _window_size(node)) for node in _widened(nodes)]
    return None if None in sizes else max((size for size in sizes if size is not None), default=0)


def _widened(nodes: Sequence[Node]) -> Iterator[Any]:
    return (node for node in nodes if _window_size(node) > 1)


def _bytes(body: Body, times: int) -> int | None:
    """Bytes of all values that torch calls of a body make, so many times."""
    total = 0
    for node in body.nodes:
        for value in node.outputs if isinstance(node.operation, TorchCall) else ():
            kind = value.type
            sizes = kind.shape if isinstance(kind, TensorType) else (None,)
            if not all(isinstance(size, int) for size in sizes):
                return None
            total += prod(sizes) * _WIDTHS.get(kind.dtype, 8)  # type: ignore[arg-type, union-attr]
    return times * total


@dataclass(slots=True)
class _Opening:
    """One pass over a program."""

    numbers: Iterator[int]
    #: How many loops have got windows.
    windows: int = 0

    def body(self, body: Body) -> Body:
        """A body with windows before the counted loops in it."""
        nodes = tuple(made for node in body.nodes for made in self._node(node))
        return replace(body, nodes=nodes)

    def _node(self, node: Node) -> Iterator[Node]:
        size = _window_size(node)
        if size < 2:
            yield node.with_bodies(map(self.body, node.bodies))
            return
        self.windows += 1
        between = tuple(map(self._fresh, node.outputs))
        yield replace(node, operation=self._widened(node.operation, size), outputs=between)
        yield replace(node, inputs=between)

    def _fresh(self, value: Value) -> Value:
        return Value(next(self.numbers), value.type)

    def _widened(self, loop: Operation, size: int) -> Loop:
        """The loop that runs `size` iterations at a time, while so many are left."""
        assert isinstance(loop, Loop)
        condition, body = self._shifted(loop, size - 1), self._repeated(loop.body, size)
        return replace(loop, condition=condition, body=body, window=size)

    def _shifted(self, loop: Loop, ahead: int) -> Body:
        """Whether the condition holds so many iterations ahead."""
        place = _counter(loop)
        assert place is not None
        inputs = tuple(map(self._fresh, loop.condition.inputs))
        later = self._fresh(inputs[place])
        shift = Node(TorchCall(_ADD, (Operand(0), ahead)), (inputs[place],), (later,))
        copy = _Copy(self, dict(zip(loop.condition.inputs, inputs, strict=True)))
        copy.names[loop.condition.inputs[place]] = later
        nodes = [shift, *map(copy.node, loop.condition.nodes)]
        return Body(inputs, tuple(nodes), copy.values(loop.condition.outputs))

    def _repeated(self, body: Body, size: int) -> Body:
        """The body, `size` times in a row."""
        inputs = carried = tuple(map(self._fresh, body.inputs))
        nodes: list[Node] = []
        for _ in range(size):
            copy = _Copy(self, dict(zip(body.inputs, carried, strict=True)))
            nodes.extend(map(copy.node, body.nodes))
            carried = copy.values(body.outputs)
        return Body(inputs, tuple(nodes), carried)


@dataclass(slots=True)
class _Copy:
    """A copy of straight code under fresh names."""

    opening: _Opening
    names: dict[Value, Value] = field(default_factory=dict)

    def node(self, node: Node) -> Node:
        """The copy of a node."""
        inputs = self.values(node.inputs)
        outputs = tuple(map(self.opening._fresh, node.outputs))
        self.names.update(zip(node.outputs, outputs, strict=True))
        return replace(node, inputs=inputs, outputs=outputs)

    def values(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Values as the copy names them; those from outside keep their names."""
        return tuple(self.names.get(value, value) for value in values)


# ---- what qualifies ------------------------------------------------------------------------------


def _window_size(node: Node) -> int:
    """How many iterations go into a window; less than 2 where there are none."""
    loop = node.operation
    if not isinstance(loop, Loop) or loop.maximum_iterations or loop.parallel_iterations:
        return 0
    calls = sum(isinstance(inner.operation, TorchCall) for inner in loop.body.nodes)
    if not all(isinstance(inner.operation, _STRAIGHT) for inner in loop.body.nodes):
        return 0
    return 0 if _counter(loop) is None else min(WINDOW, MOST_CALLS // max(calls, 1))


def _counter(loop: Loop) -> int | None:
    """The place of the carried value that the condition bounds and the body counts up by one."""
    compared = [node for node in loop.condition.nodes if node.outputs == loop.condition.outputs]
    others = [node for node in loop.condition.nodes if node not in compared]
    carried = set(loop.condition.inputs)
    if not compared or any(carried & set(node.inputs) for node in others):
        return None
    if not all(isinstance(node.operation, _STRAIGHT) for node in others):
        return None
    counter = _bounded(compared[0])
    if counter not in carried or sum(value in carried for value in compared[0].inputs) != 1:
        return None
    place = loop.condition.inputs.index(counter)
    return place if _counts_up(loop.body, place) else None


def _bounded(node: Node) -> Value | None:
    """The value that a comparison bounds from above."""
    match node.operation:
        case TorchCall(name=name, args=args, kwargs=()) if name in _UPPER and len(args) == 2:
            counter = args[_UPPER[name]]
            return node.inputs[counter.index] if isinstance(counter, Operand) else None
        case _:
            return None


def _counts_up(body: Body, place: int) -> bool:
    """Whether the carried whole number at a place is one more after each iteration."""
    counter, counted = body.inputs[place], body.outputs[place]
    if not isinstance(counter.type, TensorType) or counter.type.dtype != "int64":
        return False
    step = TorchCall(_ADD, (Operand(0), 1))
    return any(
        node.operation == step and node.inputs == (counter,) and node.outputs == (counted,)
        for node in body.nodes
    )
