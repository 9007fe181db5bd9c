"""Places nodes: gives every step of a program the device that it runs on, if any step has one.

A step that nobody has placed follows what it hangs together with:
1. it runs where a parameter that it uses lies, if that is on an accelerator;
2. else where the first step runs that reads what it makes, also through branches, loops and calls;
3. else where the first step runs that makes what it reads;
4. else at home, on the first queue of the first process.
What the user has left open of a device (the process, or the queue) is found by the same rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from penstock.ir.devices import HOME, Device
from penstock.ir.program import (
    AsSequence,
    Body,
    Captured,
    ForEach,
    Function,
    Node,
    Program,
    TorchCall,
    Value,
)
from penstock.ir.types import TensorType
from penstock.passes.flow import Flow, analyse_flow

Places = dict[Node, Device]


def place_nodes(program: Program) -> Program:
    """The program with a device for each computation; itself, if nobody has placed anything."""
    nodes = [node for function in program.functions for node in function.body.walk()]
    if not is_placed(program):
        return program
    places = _find(analyse_flow(program), nodes)
    functions = tuple(
        Function(function.name, _placed_body(function.body, places), function.source)
        for function in program.functions
    )
    return replace(program, functions=functions)


def is_placed(program: Program) -> bool:
    """Whether a computation of the program has a device."""
    nodes = (node for function in program.functions for node in function.body.walk())
    return any(node.device is not None and _computes(node) for node in nodes)


def _computes(node: Node) -> bool:
    return isinstance(node.operation, TorchCall | AsSequence)


def _find(flow: Flow, nodes: Sequence[Node]) -> Places:
    computing = [node for node in nodes if _computes(node)]
    places: Places = {node: _given(flow, node) for node in computing}
    after, before = _readers(flow, nodes), _makers(flow)
    _spread(places, computing[::-1], lambda node: after(node.outputs))
    _spread(places, computing, lambda node: before(node.inputs))
    return {node: place.inside(HOME) for node, place in places.items()}


def _given(flow: Flow, node: Node) -> Device:
    """What the user says, and where parameters lie."""
    given = node.device or Device()
    memories = [_memory(flow, value) for value in node.inputs]
    memory = next((name for name in memories if name), None)
    return given.inside(Device(None, memory))


def _memory(flow: Flow, value: Value) -> str | None:
    """The accelerator that a captured tensor lies on."""
    node = flow.definitions[flow.root(value)].node
    if node is None or not isinstance(node.operation, Captured):
        return None
    kind = node.outputs[0].type
    is_away = isinstance(kind, TensorType) and not kind.device.startswith("cpu")
    return kind.device if is_away and isinstance(kind, TensorType) else None


def _spread(
    places: Places, nodes: Sequence[Node], neighbours: Callable[[Node], Iterator[Node]]
) -> None:
    """Fill in what is open from neighbours, until nothing changes."""
    is_changed = True
    while is_changed:
        is_changed = False
        for node in nodes:
            if None not in places[node]:
                continue
            found = places[node]
            for other in neighbours(node):
                if None in found and places.get(other, found) != found:
                    found = _filled(found, places[other])
            is_changed |= found != places[node]
            places[node] = found


def _filled(open_: Device, other: Device) -> Device:
    """A queue is taken over from a neighbour only together with its process."""
    if open_.rank is not None and other.rank is not None and open_.rank != other.rank:
        return open_
    return open_.inside(other)


def _readers(flow: Flow, nodes: Sequence[Node]) -> Callable[[Sequence[Value]], Iterator[Node]]:
    """Finds the computations that read values, also under other names, in program order."""
    reading: dict[Value, list[Node]] = {}
    copies: dict[Value, list[Value]] = {}
    for node in nodes:
        for value in node.inputs:
            reading.setdefault(value, []).append(node)
    for target, sources in flow.sources.items():
        for source in sources:
            copies.setdefault(source, []).append(target)
    for node in nodes:
        for source, target in _through(node):
            copies.setdefault(source, []).append(target)
    return lambda values: _reached(values, copies, reading)


def _makers(flow: Flow) -> Callable[[Sequence[Value]], Iterator[Node]]:
    """Finds the computations that make values, also under other names."""
    making = {
        value: [definition.node]
        for value, definition in flow.definitions.items()
        if definition.node is not None and definition.is_output
    }
    copies = dict(flow.sources)
    for node in {node for nodes in making.values() for node in nodes}:
        for source, target in _through(node):
            copies[target] = [*copies.get(target, ()), source]
    return lambda values: _reached(values, copies, making)


def _through(node: Node) -> Iterator[tuple[Value, Value]]:
    """What moves through a step that computes nothing: elements, arrays, results of for-each."""
    if isinstance(node.operation, ForEach):
        body = node.operation.body
        yield from zip(node.inputs, body.inputs, strict=True)
        yield from zip(body.outputs, node.outputs, strict=True)
    elif not _computes(node) and not node.bodies:
        yield from ((source, target) for source in node.inputs for target in node.outputs)


def _reached(
    values: Sequence[Value],
    copies: dict[Value, list[Value]],
    nodes: dict[Value, list[Node]],
) -> Iterator[Node]:
    """Nodes at values and at their copies, the nearest first."""
    seen = dict.fromkeys(values)
    work = list(seen)
    for value in work:
        yield from (node for node in nodes.get(value, ()) if _computes(node))
        for other in copies.get(value, ()):
            if other not in seen:
                seen[other] = None
                work.append(other)


def _placed_body(body: Body, places: Places) -> Body:
    nodes = tuple(_placed(node, places) for node in body.nodes)
    return Body(body.inputs, nodes, body.outputs)


def _placed(node: Node, places: Places) -> Node:
    if not node.bodies:
        return replace(node, device=places.get(node))
    bodies = (_placed_body(body, places) for body in node.bodies)
    return replace(node.with_bodies(bodies), device=None)
