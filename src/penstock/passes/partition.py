"""Cuts a graph into one part for each device, with Send and Recv on the edges that are cut.

Control is the same on every device: each part has all contexts, arms and host operations, and only
the blocks of its own device. A value that another device makes is received where it is made, if a
block here may read it; else only its slot is known here. A value that is read back is read where it
was made, and sent to all others. Outputs end up on the first device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from penstock.ir.devices import HOME, Device
from penstock.ir.graph import Block, Context, Elsewhere, Graph, Home, Node, Read, Recv, Send, Wire
from penstock.passes.wire_copies import wire_copies

Devices = frozenset[Device]


@dataclass(frozen=True, slots=True)
class Partition:
    """The part of each device, in their order."""

    parts: dict[Device, Graph]

    def __str__(self) -> str:
        return "\n\n".join(_titled(f"on {device}:", part) for device, part in self.parts.items())


def _titled(title: str, part: Graph) -> str:
    lines = [f"  {line}".rstrip() for line in str(part).splitlines()]
    return "\n".join([title, *lines])


def partition_graph(graph: Graph) -> Partition:
    """One part for each device that a block is placed on."""
    blocks = [node for node in graph.nodes if isinstance(node.operation, Block)]
    devices = {device_of(block) for block in blocks} or {HOME}
    ordered = sorted(devices, key=lambda device: device.order)
    cuts = _Cuts(graph, ordered)
    return Partition({device: _part(graph, cuts, device) for device in ordered})


def device_of(node: Node) -> Device:
    """Where a block runs."""
    assert isinstance(node.operation, Block)
    return node.operation.device or HOME


def _part(graph: Graph, cuts: _Cuts, device: Device) -> Graph:
    contexts = tuple(
        replace(context, nodes=tuple(_nodes(context, cuts, device))) for context in graph.contexts
    )
    return replace(graph, contexts=contexts)


def _nodes(context: Context, cuts: _Cuts, device: Device) -> Iterator[Node]:
    """What becomes of the nodes of a context on a device."""
    for node in context.nodes:
        makers = cuts.makers(node)
        if makers is None:
            yield node
        elif device in makers:
            yield node
            for wire in node.outputs:
                targets = tuple(sorted(cuts.needed(wire) - makers, key=lambda other: other.order))
                if targets:
                    yield replace(node, operation=Send(targets), inputs=(wire,), outputs=())
        else:
            source = min(makers, key=lambda other: other.order)
            for wire in node.outputs:
                kind = Recv if device in cuts.needed(wire) else Elsewhere
                yield replace(node, operation=kind(source), inputs=(), outputs=(wire,))


class _Cuts:
    """Who makes values, and who may need them."""

    def __init__(self, graph: Graph, devices: list[Device]) -> None:
        self._devices = frozenset(devices)
        self._home = devices[0]
        blocks = [node for node in graph.nodes if isinstance(node.operation, Block)]
        copies = list(wire_copies(graph))
        made = ((wire, device_of(node)) for node in blocks for wire in node.outputs)
        self._made = _spread(made, copies)
        read = [
            (wire, device_of(node))
            for node in blocks
            for wire in node.inputs
            if wire.home is Home.SLOT
        ]
        read += [(wire, self._home) for wire in graph.contexts[0].outputs]
        self._read = _spread(read, [(target, source) for source, target in copies])

    def makers(self, node: Node) -> Devices | None:
        """The devices that run a node; None where all do."""
        if isinstance(node.operation, Block):
            return frozenset([device_of(node)])
        if isinstance(node.operation, Read):
            return self._made.get(node.inputs[0]) or frozenset([self._home])
        return None

    def needed(self, wire: Wire) -> Devices:
        """The devices that may need a value; all need what steers."""
        return self._devices if wire.home is Home.HOST else self._read.get(wire, frozenset())


def _spread(
    start: Iterable[tuple[Wire, Device]], edges: Iterable[tuple[Wire, Wire]]
) -> dict[Wire, Devices]:
    """Devices at wires, and at all wires that edges lead to from there."""
    after: dict[Wire, list[Wire]] = {}
    for source, target in edges:
        after.setdefault(source, []).append(target)
    found: dict[Wire, Devices] = {}
    work = list(start)
    for wire, device in work:
        known = found.get(wire, frozenset())
        if device not in known:
            found[wire] = known | {device}
            work.extend((other, device) for other in after.get(wire, ()))
    return found
