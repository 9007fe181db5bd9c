"""One block of a whole straight-line program: what a call that is recorded as one step launches.

Parameters come in as slots, captures and constants as uniform tensors, the keys of random draws
from the host. A result that is an argument or a uniform tensor itself is not computed: its place
says which it is. Calls of other straight-line functions are written out. Programs with control
flow, arrays or dynamic dimensions have no such block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from penstock.ir.graph import Block, Home, Wire
from penstock.ir.graph import Node as GraphNode
from penstock.ir.program import (
    AsSequence,
    Body,
    Branch,
    Call,
    Captured,
    Constant,
    Element,
    ForEach,
    Function,
    Loop,
    Node,
    Operand,
    Program,
    RandomKey,
    Size,
    TorchCall,
    Value,
)
from penstock.ir.types import TensorType, Type
from penstock.passes.share import share_computations


@dataclass(frozen=True, slots=True)
class Made:
    """A result that the block computes: that output of the node."""

    output: int


@dataclass(frozen=True, slots=True)
class Given:
    """A result that is an argument itself: that parameter of the program."""

    parameter: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A result that is a uniform tensor itself: that entry of `UnitBlock.uniforms`."""

    uniform: int


Place: TypeAlias = Made | Given | Kept


@dataclass(frozen=True, slots=True)
class Uniform:
    """A tensor that is the same in every call: a capture of the program, or a constant."""

    operation: Captured | Constant
    type: TensorType


@dataclass(frozen=True, slots=True, eq=False)
class UnitBlock:
    """The block, and what its inputs and the program's results are."""

    #: The inputs are slots, then uniform tensors, then keys; None where nothing is computed.
    node: GraphNode | None
    #: Which parameter of the program each slot is; unused ones are none.
    parameters: tuple[int, ...]
    #: What the uniform inputs are, in order; then those that are only results.
    uniforms: tuple[Uniform, ...]
    #: Which random draw each key is for, counted in the order in which they happen.
    keys: tuple[int, ...]
    #: How many random draws happen, also those whose results nobody uses.
    draws: int
    #: One for each output of the program.
    results: tuple[Place, ...]


def unit_block(program: Program) -> UnitBlock | None:
    """The program as one block; None where it is more than that."""
    if obstacle(program) is not None:
        return None
    flat = _Flat(program)
    outputs = flat.write_out(program.entry.body, {})
    body = Body(program.entry.body.inputs, tuple(flat.nodes), tuple(outputs))
    entry = Function(program.entry.name, body, program.entry.source)
    shared = share_computations(replace(program, functions=(entry,))).entry
    return _Maker(shared).make()


def obstacle(program: Program) -> str | None:
    """Why a program is not one block, in words; None where it is."""
    return next(_obstacles(program, program.entry, ()), None)


def _obstacles(program: Program, function: Function, around: tuple[str, ...]) -> Iterator[str]:
    if function.name in around:
        yield f"{function.name} calls itself"
        return
    for value in function.body.inputs:
        yield from _type_obstacles(value.type)
    for node in function.body.nodes:
        match node.operation:
            case Branch() | Loop() | ForEach():
                yield f"it has control flow ({type(node.operation).__name__})"
            case TorchCall(name=name, sizes=sizes) if sizes:
                yield f"{name} takes a size that is computed"
            case TorchCall() | Element():
                for value in node.outputs:
                    yield from _type_obstacles(value.type)
            case Call(function=name):
                yield from _obstacles(program, program.function(name), (*around, function.name))
            case Constant() | Captured() | RandomKey() | AsSequence():
                pass
            case Size():
                yield "it has a dimension of unknown size"
            case _:
                yield "it has a TensorArray"


def _type_obstacles(type_: Type) -> Iterator[str]:
    if not isinstance(type_, TensorType):
        yield "it has a TensorArray"
    elif type_.is_dynamic:
        yield "it has a dimension of unknown size"


@dataclass(slots=True)
class _Flat:
    """The nodes of the entry and of the functions it calls, in the order in which they run."""

    program: Program
    nodes: list[Node] = field(default_factory=list)

    def write_out(self, body: Body, known: dict[Value, Value]) -> list[Value]:
        """Add the body's nodes, its inputs replaced as `known` says; what it returns."""
        for node in body.nodes:
            inputs = tuple(known.get(value, value) for value in node.inputs)
            match node.operation:
                case Call(function=name):
                    inner = self.program.function(name).body
                    results = self.write_out(inner, dict(zip(inner.inputs, inputs, strict=True)))
                    known.update(zip(node.outputs, results, strict=True))
                case AsSequence():
                    known[node.outputs[0]] = inputs[0]
                case _:
                    self._add(node, inputs, known)
        return [known.get(value, value) for value in body.outputs]

    def _add(self, node: Node, inputs: tuple[Value, ...], known: dict[Value, Value]) -> None:
        outputs = tuple(Value(value.number, value.type) for value in node.outputs)
        known.update(zip(node.outputs, outputs, strict=True))
        operation = _READ_ELEMENT if isinstance(node.operation, Element) else node.operation
        self.nodes.append(replace(node, operation=operation, inputs=inputs, outputs=outputs))


#: An element of a sequence, where the whole sequence is at hand.
_READ_ELEMENT = TorchCall("torch.Tensor.__getitem__", (Operand(0), Operand(1)))


class _Maker:
    """Makes the block of a body of torch calls."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._definitions = {value: node for node in function.body.nodes for value in node.outputs}
        keys = [n.outputs[0] for n in function.body.nodes if isinstance(n.operation, RandomKey)]
        self._draws = {value: number for number, value in enumerate(keys)}
        self._parameters = {value: k for k, value in enumerate(function.body.inputs)}

    def make(self) -> UnitBlock:
        """The block and its places."""
        calls = self._live_calls()
        read = dict.fromkeys(value for node in calls for value in node.inputs)
        slots = [value for value in self._parameters if value in read]
        keys = [value for value in self._draws if value in read]
        uniforms = [value for value in read if self._is_uniform(value)]
        results = dict.fromkeys(self._function.body.outputs)
        made = [value for value in results if self._is_made(value)]
        node = self._node(calls, slots, uniforms, keys, made) if made else None
        extra = [value for value in results if self._is_uniform(value) and value not in read]
        uniforms = [*uniforms, *extra]
        return UnitBlock(
            node,
            tuple(self._parameters[value] for value in slots),
            tuple(map(self._uniform, uniforms)),
            tuple(self._draws[value] for value in keys),
            len(self._draws),
            tuple(self._place(value, made, uniforms) for value in self._function.body.outputs),
        )

    def _live_calls(self) -> list[Node]:
        """The torch calls that results depend on."""
        live = set(self._function.body.outputs)
        calls = []
        for node in reversed(self._function.body.nodes):
            if isinstance(node.operation, TorchCall) and not live.isdisjoint(node.outputs):
                live.update(node.inputs)
                calls.append(node)
        return calls[::-1]

    def _node(
        self,
        calls: list[Node],
        slots: list[Value],
        uniforms: list[Value],
        keys: list[Value],
        made: list[Value],
    ) -> GraphNode:
        parameters = (*slots, *uniforms, *keys)
        homes = [Home.SLOT] * len(slots) + [Home.UNIFORM] * len(uniforms) + [Home.HOST] * len(keys)
        inputs = [
            Wire(number, value.type, home, 0, 0)
            for number, (value, home) in enumerate(zip(parameters, homes, strict=True))
        ]
        outputs = [
            Wire(len(inputs) + number, value.type, Home.SLOT, 0, 0)
            for number, value in enumerate(made)
        ]
        function = self._function
        block = Block(function.name, tuple(calls), parameters, tuple(made))
        return GraphNode(block, tuple(inputs), tuple(outputs), 0, 0, function.source)

    def _is_made(self, value: Value) -> bool:
        node = self._definitions.get(value)
        return node is not None and isinstance(node.operation, TorchCall)

    def _is_uniform(self, value: Value) -> bool:
        node = self._definitions.get(value)
        return node is not None and isinstance(node.operation, Captured | Constant)

    def _uniform(self, value: Value) -> Uniform:
        operation = self._definitions[value].operation
        assert isinstance(operation, Captured | Constant)
        assert isinstance(value.type, TensorType)
        return Uniform(operation, value.type)

    def _place(self, value: Value, made: list[Value], uniforms: list[Value]) -> Place:
        if value in self._parameters:
            return Given(self._parameters[value])
        return Made(made.index(value)) if value in made else Kept(uniforms.index(value))
