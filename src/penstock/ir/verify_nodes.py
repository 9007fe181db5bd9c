"""Rules on the nodes of a graph: homes of wires, the insides of blocks and computations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.ir.graph import (
    Block,
    Call,
    Compute,
    Elsewhere,
    Enter,
    Fork,
    Graph,
    Home,
    Key,
    Merge,
    Node,
    Operation,
    Pass,
    Primitive,
    Read,
    Recv,
    Send,
    Switch,
    Upload,
    Wire,
)
from penstock.ir.verify import Rule, are_copies

H, S, U = Home.HOST, Home.SLOT, Home.UNIFORM

#: Homes that the inputs and the outputs of a node may have.
_HOMES: Mapping[type[Operation], tuple[tuple[Home, ...], tuple[Home, ...]]] = {
    Compute: ((H,), (H,)),
    Block: ((H, S, U), (S,)),
    Read: ((S,), (H,)),
    Upload: ((H,), (S,)),
    Pass: ((H, S), (H, S)),
    Switch: ((H,), ()),
    Merge: ((H, S), (H, S)),
    Call: ((H, S), (H, S)),
    Enter: ((H, S), (H, S)),
    Fork: ((H, S), (S,)),
    Key: ((), (H,)),
    Send: ((H, S), ()),
    Recv: ((), (H, S)),
    Elsewhere: ((), (S,)),
}

#: Homes of the inputs, one by one, and of the output of operations on elements and arrays.
_PRIMITIVE_HOMES: Mapping[str, tuple[tuple[Home, ...], Home]] = {
    "Element": ((S, H), S),
    "Size": ((S,), H),
    "ArraySize": ((S,), H),
    "ArrayNew": ((H,), S),
    "ArrayUnstack": ((S,), S),
    "ArrayRead": ((S, H), S),
    "ArrayWrite": ((S, H, S), S),
    "ArrayStack": ((S,), S),
}


def _wires_are_at_home(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if not _is_at_home(node):
            inputs = ", ".join(wire.home for wire in node.inputs)
            outputs = ", ".join(wire.home for wire in node.outputs)
            yield f"{type(node.operation).__name__}: ({inputs}) -> ({outputs})"


def _is_at_home(node: Node) -> bool:
    if isinstance(node.operation, Primitive):
        inputs, output = _PRIMITIVE_HOMES[node.operation.name]
        return _homes(node.inputs) == inputs and _homes(node.outputs) == (output,)
    allowed, made = _HOMES[type(node.operation)]
    return set(_homes(node.inputs)) <= set(allowed) and set(_homes(node.outputs)) <= set(made)


def _homes(wires: tuple[Wire, ...]) -> tuple[Home, ...]:
    return tuple(wire.home for wire in wires)


def _computations_are_whole(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if not isinstance(node.operation, Compute):
            continue
        known = set(node.inputs)
        for step in node.operation.steps:
            for item in step.operands:
                if isinstance(item, Wire) and item not in known:
                    yield f"{step.name} reads {item}, which is not there"
            known.add(step.output)
        for wire in node.outputs:
            if wire not in known or wire in node.inputs:
                yield f"{wire} is not computed"


def _blocks_match_their_wires(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if not isinstance(node.operation, Block):
            continue
        block = node.operation
        for word, values, wires in (
            ("parameters", block.parameters, node.inputs),
            ("results", block.results, node.outputs),
        ):
            if len(values) != len(wires):
                yield f"{block.name} has {len(values)} {word} and {len(wires)} wires"
                continue
            for value, wire in zip(values, wires, strict=True):
                if not are_copies(value.type, wire.type):
                    yield f"{block.name}: {wire}: {wire.type} stands for {value.type}"
        for position in block.sizes:
            if position >= len(node.inputs) or node.inputs[position].home is not Home.HOST:
                yield f"{block.name}: size {position} is not on the host"


def _blocks_are_straight_lines(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        if not isinstance(node.operation, Block):
            continue
        block = node.operation
        known = set(block.parameters)
        for step in block.nodes:
            if not known.issuperset(step.inputs):
                yield f"{block.name}: {step.operation} reads what is not there"
            if step.bodies:
                yield f"{block.name} has control flow inside"
            known.update(step.outputs)
        made = {value for step in block.nodes for value in step.outputs}
        if not made.issuperset(block.results):
            yield f"{block.name} returns what it does not compute"


def _uniforms_come_in_order(graph: Graph) -> Iterator[str]:
    known: set[Wire] = set()
    for uniform in graph.uniforms:
        if uniform.wire.home is not Home.UNIFORM or not known.issuperset(uniform.inputs):
            yield f"{uniform.wire} depends on what is not uniform, or comes later"
        if uniform.output >= len(uniform.node.outputs):
            yield f"{uniform.wire} is output {uniform.output} of {len(uniform.node.outputs)}"
        known.add(uniform.wire)
    for number, item in enumerate(graph.inputs):
        if item.uniform is not None and item.uniform not in known:
            yield f"input {number} shares {item.uniform}, which is not uniform"


NODE_RULES: Mapping[str, Rule[Graph]] = {
    "wires are at home where a node takes or makes them": _wires_are_at_home,
    "a computation reads what it has and makes what it returns": _computations_are_whole,
    "the parameters and results of a block match its wires": _blocks_match_their_wires,
    "a block is a straight line that makes its results": _blocks_are_straight_lines,
    "uniform computations come in order": _uniforms_come_in_order,
}
