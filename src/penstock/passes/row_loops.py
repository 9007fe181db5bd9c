"""Closes loops of row-wise arithmetic: each becomes one operation that every row runs by itself.

A loop qualifies where its condition and its body compute on scalars and small tensors of static
shape by the operations of `row_operations`, with branches and loops of the same kind inside. What
control needs stays where the planner can look ahead: a loop whose results steer the rest of the
program, and which the host could run, is left as it is. So is a loop that is the same for all rows.
Where asked for, loops of other torch calls are closed too, if the host would read their conditions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from penstock.ir.graph import Block
from penstock.ir.program import (
    Body,
    Branch,
    Captured,
    Constant,
    Function,
    Loop,
    Node,
    Program,
    RowLoop,
    TorchCall,
    Value,
)
from penstock.passes.flow import Flow
from penstock.passes.row_calls import row_call
from penstock.passes.row_types import count_elements, device_of, dtype_of, is_small, shape_of
from penstock.passes.slicing import Slices
from penstock.passes.whole_loops import is_whole_loop

#: Elements of a value in native code, at most: each is a variable of its own.
MOST_ELEMENTS = 16

#: Scalar operations in one loop, at most: compile time grows with them.
MOST_OPERATIONS = 512


def close_row_loops(flow: Flow, slices: Slices, kinds: Collection[str]) -> Program:
    """The program with its row-wise loops on devices of these kinds ("cpu", "cuda") closed, and
    other loops on those of the kinds "whole cpu" and "whole cuda"; the program itself where it has
    no such loops.
    """
    closing = _Closing(flow, slices, kinds)
    functions = tuple(
        Function(function.name, closing.body(function.body), function.source)
        for function in flow.program.functions
    )
    return replace(flow.program, functions=functions) if closing.count else flow.program


@dataclass(slots=True)
class _Closing:
    """One pass over a program."""

    flow: Flow
    slices: Slices
    kinds: Collection[str]
    #: Values that go by the name of what they always equal.
    renamed: dict[Value, Value] = field(default_factory=dict)
    #: How many loops have been closed.
    count: int = 0

    def body(self, body: Body) -> Body:
        """A body, loops in it closed from the outside in."""
        nodes: list[Node] = []
        for node in body.nodes:
            nodes.extend(self._node(node))
        return Body(body.inputs, tuple(nodes), self._names(body.outputs))

    def _names(self, values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(self.renamed.get(value, value) for value in values)

    def _node(self, node: Node) -> Iterator[Node]:
        if isinstance(node.operation, Loop) and self._qualifies(node):
            is_rowwise = self._is_rowwise(node)
            if is_rowwise or self._is_whole(node, node.operation):
                self.count += 1
                yield from self._close(node, is_whole=not is_rowwise)
                return
        made = node.with_bodies(map(self.body, node.bodies))
        yield replace(made, inputs=self._names(node.inputs))

    # ---- what qualifies --------------------------------------------------------------------------

    def _qualifies(self, node: Node) -> bool:
        slices = self.slices
        steers = any(x in slices.needed and x in slices.controllable for x in node.outputs)
        if steers or not slices.is_live(node):
            return False
        return any(self.flow.root(value) not in slices.uniform for value in _free_values(node))

    def _kind(self, node: Node) -> str | None:
        """The kind of the one device on which a loop runs."""
        device = _device_of(node)
        return None if device is None else device.split(":")[0]

    def _is_whole(self, node: Node, loop: Loop) -> bool:
        if f"whole {self._kind(node)}" not in self.kinds:
            return False
        predicate = self.flow.root(loop.condition.outputs[0])
        return predicate in self.slices.read and is_whole_loop(node, _inner_nodes(node))

    def _is_rowwise(self, node: Node) -> bool:
        if self._kind(node) not in self.kinds:
            return False
        counted = [self._cost(item) for item in _inner_nodes(node)]
        costs = [cost for cost in counted if cost is not None]
        return len(costs) == len(counted) and sum(costs) <= MOST_OPERATIONS

    def _cost(self, node: Node) -> int | None:
        """How many scalar operations a node is; None where it is not row-wise."""
        if not all(is_small(value, MOST_ELEMENTS) for value in (*node.inputs, *node.outputs)):
            return None
        match node.operation:
            case Constant() | Captured():
                return 0
            case Loop(condition=condition):
                return len(node.inputs) if _is_predicate(condition.outputs[0]) else None
            case Branch(is_cond=True):
                return len(node.outputs) if _is_predicate(node.inputs[0]) else None
            case TorchCall() if row_call(node, self.slices.default_dtype) is not None:
                return sum(map(count_elements, (*node.inputs, *node.outputs)))
            case _:
                return None

    # ---- closing ---------------------------------------------------------------------------------

    def _close(self, node: Node, *, is_whole: bool) -> Iterator[Node]:
        """The captured tensors that the loop reads, then the closed loop."""
        for item in _inner_nodes(node):
            if isinstance(item.operation, Captured):
                yield item
        loop = _Stripping(self.flow, self.renamed).node(node)
        free = _free_values(loop)
        constants = {value: made for value in free if (made := self._constant(value)) is not None}
        inputs = tuple(value for value in free if value not in constants)
        body = Body(inputs, (*constants.values(), loop), loop.outputs)
        yield replace(loop, operation=RowLoop(body, is_whole), inputs=inputs, site=())

    def _constant(self, value: Value) -> Node | None:
        """A node that makes the value, if it is a number of the program."""
        made = self.flow.definitions[self.flow.root(value)].node
        if made is None or not isinstance(made.operation, Constant):
            return None
        return Node(made.operation, (), (value,), made.source)


@dataclass(slots=True)
class _Stripping:
    """Takes out of a loop what does not belong in it: captures, and carried values that never
    change.
    """

    flow: Flow
    renamed: dict[Value, Value]

    def node(self, node: Node) -> Node:
        """A node of the loop, or the loop."""
        match node.operation:
            case Loop():
                return self._loop(node, node.operation)
            case Branch(bodies=bodies):
                made = replace(node.operation, bodies=tuple(map(self.body, bodies)))
                return replace(node, operation=made, inputs=self._names(node.inputs))
            case _:
                return replace(node, inputs=self._names(node.inputs))

    def body(self, body: Body) -> Body:
        """A body, without captures."""
        kept = [node for node in body.nodes if not isinstance(node.operation, Captured)]
        nodes = tuple(map(self.node, kept))
        return Body(body.inputs, nodes, self._names(body.outputs))

    def _loop(self, node: Node, loop: Loop) -> Node:
        inputs = loop.condition.inputs
        kept = [k for k, value in enumerate(inputs) if self.flow.root(value) is value]
        for values in (inputs, loop.body.inputs, node.outputs):
            for k in set(range(len(inputs))) - set(kept):
                self.renamed[values[k]] = self.flow.root(inputs[k])
        initial = self._names(node.inputs)
        condition, body = self.body(loop.condition), self.body(loop.body)
        made = Loop(
            replace(condition, inputs=_pick(condition.inputs, kept)),
            Body(_pick(body.inputs, kept), body.nodes, _pick(body.outputs, kept)),
            loop.maximum_iterations,
        )
        outputs = _pick(node.outputs, kept)
        return replace(node, operation=made, inputs=_pick(initial, kept), outputs=outputs)

    def _names(self, values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(self.renamed.get(value, value) for value in values)


def device_of_loop(block: Block) -> str:
    """Where the closed loop of a block runs."""
    device = device_of(block.nodes[0].inputs)
    assert device is not None, "a closed loop runs on one device"
    return device


def _device_of(node: Node) -> str | None:
    """Where a loop runs, by what is in it; None where that is not one device."""
    nodes = _inner_nodes(node)
    return device_of(value for item in nodes for value in (*item.inputs, *item.outputs))


def _pick(values: Sequence[Value], places: Sequence[int]) -> tuple[Value, ...]:
    return tuple(values[place] for place in places)


def _inner_nodes(node: Node) -> Iterator[Node]:
    """A node and all nodes inside it."""
    yield node
    for body in node.bodies:
        yield from body.walk()


def _free_values(node: Node) -> tuple[Value, ...]:
    """What a node and the bodies in it read from outside, once each."""
    made: set[Value] = set()
    read: dict[Value, None] = {}
    for item in _inner_nodes(node):
        read.update(dict.fromkeys(item.inputs))
        if item is not node:
            made.update(item.outputs)
        for body in item.bodies:
            made.update(body.inputs)
            read.update(dict.fromkeys(body.outputs))
    return tuple(value for value in read if value not in made)


def _is_predicate(value: Value) -> bool:
    return not shape_of(value) and dtype_of(value) in ("bool", "int64")
