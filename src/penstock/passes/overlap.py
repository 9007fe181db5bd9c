"""Whether the iterations of a loop can run at the same time on several devices, and if not, why.

They can if two blocks of the loop run on different devices and do not both need each other's
results of the iteration before: then one device may be iterations ahead of the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from penstock.ir.devices import HOME, Device
from penstock.ir.graph import Block, Call, Context, Graph, Node, Read, Wire
from penstock.passes.wire_copies import wire_copies
from penstock.plan.components import find_components


@dataclass(frozen=True, slots=True)
class Overlap:
    """What is known of a loop."""

    context: Context
    devices: tuple[Device, ...]
    #: Why iterations run one after the other; None where they need not.
    obstacle: str | None


def find_overlaps(graph: Graph) -> list[Overlap]:
    """The loops that bound their iterations in flight, or that several devices run."""
    loops = [context for context in graph.contexts if context.kind == "loop"]
    found = [_overlap(graph, context) for context in loops]
    return [
        each
        for each in found
        if each.context.parallel_iterations is not None or len(each.devices) > 1
    ]


def _overlap(graph: Graph, context: Context) -> Overlap:
    inside = _inside(graph, context)
    nodes = [node for index in inside for node in graph.contexts[index].nodes]
    places = {node: _device(node) for node in nodes if isinstance(node.operation, Block)}
    devices = tuple(sorted(set(places.values()), key=lambda device: device.order))
    return Overlap(context, devices, _obstacle(graph, context, nodes, places, devices))


def _device(node: Node) -> Device:
    assert isinstance(node.operation, Block)
    return node.operation.device or HOME


def _inside(graph: Graph, context: Context) -> list[int]:
    """The context, those nested in it, and the functions that are called there."""
    found = {context.index: None}
    for index in (work := [context.index]):
        opened = [other.index for other in graph.contexts if other.parent == index]
        for node in graph.contexts[index].nodes:
            if isinstance(node.operation, Call):
                opened.append(node.operation.callee)
        for other in opened:
            if other not in found:
                found[other] = None
                work.append(other)
    return list(found)


def _obstacle(
    graph: Graph,
    context: Context,
    nodes: list[Node],
    places: dict[Node, Device],
    devices: tuple[Device, ...],
) -> str | None:
    if context.parallel_iterations == 1:
        return "parallel_iterations=1 asks for one at a time"
    if len(devices) < 2:
        return f"all its blocks run on one device, {devices[0] if devices else HOME}, in order"
    if any(isinstance(node.operation, Read) for node in nodes):
        return "a computed value is read back in each iteration, and decides how it goes on"
    cycles = _cycles(graph, places)
    pairs = {(cycles[node], device) for node, device in places.items()}
    if len({cycle for cycle, _ in pairs}) == 1:
        return "each device needs what the others have computed in the iteration before"
    return None


def _cycles(graph: Graph, places: dict[Node, Device]) -> dict[Hashable, int]:
    """For each block the number of its cycle: blocks of one cycle need each other's results."""
    after: dict[Node | Wire, list[Node | Wire]] = {}
    for source, target in _edges(graph, places):
        after.setdefault(source, []).append(target)
        after.setdefault(target, [])
    for node in places:
        after.setdefault(node, [])
    components = find_components(after, after)
    return {member: number for number, cycle in enumerate(components) for member in cycle}


def _edges(graph: Graph, places: dict[Node, Device]) -> Iterator[tuple[Node | Wire, Node | Wire]]:
    yield from wire_copies(graph)
    for node in places:
        yield from ((wire, node) for wire in node.inputs)
        yield from ((node, wire) for wire in node.outputs)
