"""Finds the wires through which gradients can flow, given which inputs and captures ask for them.

Control flow only copies, so a wire differentiates if any of its sources does. Inside a block the
dependence of each result on each operand is followed call by call; whole numbers, truth values and
`detach` stop it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from penstock.ir.graph import (
    Block,
    Graph,
    Home,
    Node,
    Wire,
)
from penstock.ir.program import Branch, Captured, Loop, RowLoop, TorchCall, Value
from penstock.ir.program import Node as ProgramNode
from penstock.ir.types import ArrayType, Type
from penstock.passes.wire_copies import wire_copies

_FLOATING = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


def find_differentiable(graph: Graph, arguments: Set[int], captures: Set[int]) -> frozenset[Wire]:
    """The slot and uniform wires whose values may carry gradients."""
    found = set(_differentiable_uniforms(graph, captures))
    for entry in graph.inputs:
        is_asked = entry.number in arguments or entry.uniform in found
        if is_asked and entry.slot is not None and _is_floating(entry.type):
            found.add(entry.slot)
    copies = list(wire_copies(graph))
    blocks = [node for node in graph.nodes if isinstance(node.operation, Block)]
    size = -1
    while len(found) != size:
        size = len(found)
        found.update(target for source, target in copies if source in found)
        for node in blocks:
            found.update(_through_block(node, found))
    return frozenset(found)


def _is_floating(kind: Type) -> bool:
    if isinstance(kind, ArrayType):
        return kind.element is not None and _is_floating(kind.element)
    return kind.dtype in _FLOATING


def _differentiable_uniforms(graph: Graph, captures: Set[int]) -> Iterator[Wire]:
    known: set[Wire] = set()
    for uniform in graph.uniforms:
        operation = uniform.node.operation
        is_asked = isinstance(operation, Captured) and operation.index in captures
        stops = isinstance(operation, TorchCall) and _stops(operation)
        is_reached = any(wire in known for wire in uniform.inputs) and not stops
        if (is_asked or is_reached) and _is_floating(uniform.wire.type):
            known.add(uniform.wire)
            yield uniform.wire


#: Calls that take only the shape, dtype or device of their operand, or cut the graph on purpose.
_STOPS = frozenset(
    [
        "detach",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "new_tensor",
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
    ]
)


def _stops(call: TorchCall) -> bool:
    return call.name.rsplit(".", 1)[-1] in _STOPS


def _through_block(node: Node, found: set[Wire]) -> Iterator[Wire]:
    block = node.operation
    assert isinstance(block, Block)
    carrying: set[Value] = {
        value
        for value, wire in zip(block.parameters, node.inputs, strict=True)
        if wire in found and wire.home is not Home.HOST
    }
    _through_nodes(block.nodes, carrying)
    for value, wire in zip(block.results, node.outputs, strict=True):
        if value in carrying:
            yield wire


def _through_nodes(nodes: Sequence[ProgramNode], carrying: set[Value]) -> None:
    """Add the values that nodes make of what carries gradients."""
    for node in nodes:
        match node.operation:
            case RowLoop(body=body):
                _copy(node.inputs, body.inputs, carrying)
                _through_nodes(body.nodes, carrying)
                _copy(body.outputs, node.outputs, carrying)
            case Branch(bodies=bodies):
                for body in bodies:
                    _through_nodes(body.nodes, carrying)
                    _copy(body.outputs, node.outputs, carrying)
            case Loop():
                _through_loop(node, node.operation, carrying)
            case TorchCall() as call if _stops(call):
                continue
            case _ if any(value in carrying for value in node.inputs):
                carrying.update(value for value in node.outputs if _is_floating(value.type))


def _through_loop(node: ProgramNode, loop: Loop, carrying: set[Value]) -> None:
    _copy(node.inputs, loop.body.inputs, carrying)
    size = -1
    while len(carrying) != size:
        size = len(carrying)
        _through_nodes(loop.body.nodes, carrying)
        _copy(loop.body.outputs, loop.body.inputs, carrying)
    _copy(loop.body.inputs, node.outputs, carrying)


def _copy(sources: Sequence[Value], targets: Sequence[Value], carrying: set[Value]) -> None:
    pairs = zip(sources, targets, strict=True)
    carrying.update(target for source, target in pairs if source in carrying)
