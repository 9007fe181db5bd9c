"""Which wires arrive together: wires of one class have sources of one class, at every site."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.ir.graph import Call, Context, Enter, Fork, Graph, Merge, Node, Wire
from penstock.plan.linked import Group

#: What tells wires apart at once, and the wires whose classes tell them apart in the end.
Signature = tuple[tuple[object, ...], tuple[Wire, ...]]


@dataclass(slots=True)
class Groups:
    """The group of each wire, and its place among the group's wires."""

    of: dict[Wire, Group] = field(default_factory=dict)
    field_of: dict[Wire, int] = field(default_factory=dict)

    def all(self) -> list[Group]:
        """Every group once."""
        return list(dict.fromkeys(self.of.values()))


def form_groups(graph: Graph) -> Groups:
    """The coarsest groups such that the values of a group always come from one event."""
    members: dict[int, list[Wire]] = {}
    for wire, number in _classes(_signatures(graph)).items():
        members.setdefault(number, []).append(wire)
    groups = Groups()
    for number, wires in members.items():
        group = Group(number, wires[0].context, tuple(wires))
        for position, wire in enumerate(wires):
            groups.of[wire], groups.field_of[wire] = group, position
    return groups


def _classes(signatures: dict[Wire, Signature]) -> dict[Wire, int]:
    """Refine until wires in one class have sources in one class, site by site."""
    classes = dict.fromkeys(signatures, 0)
    count = 0
    while True:
        numbers: dict[object, int] = {}
        refined = {}
        for wire, (base, sources) in signatures.items():
            key = (base, tuple(classes.get(source, -1) for source in sources))
            refined[wire] = numbers.setdefault(key, len(numbers))
        if len(numbers) == count:
            return refined
        classes, count = refined, len(numbers)


def _signatures(graph: Graph) -> dict[Wire, Signature]:
    found: dict[Wire, Signature] = {}
    sites: dict[int, list[Node]] = {}
    for context in graph.contexts:
        for position, node in enumerate(context.nodes):
            for number, wire in enumerate(node.outputs):
                found[wire] = _sign_output(graph, node, (context.index, position), number)
            if isinstance(node.operation, Call):
                sites.setdefault(node.operation.callee, []).append(node)
    for context in graph.contexts:
        for number, wire in enumerate(context.inputs):
            sources = _sources(context, number, sites.get(context.index, []))
            found[wire] = (("input", context.index), sources)
    return found


def _sources(context: Context, number: int, sites: list[Node]) -> tuple[Wire, ...]:
    """The wires that events copy to an input of a context; an opener's inputs arrive together."""
    if context.kind == "function":
        return tuple(node.inputs[number] for node in sites)
    return (context.outputs[number],) if context.kind == "loop" else ()


def _sign_output(graph: Graph, node: Node, place: tuple[int, int], number: int) -> Signature:
    match node.operation:
        case Merge():
            arms = tuple(source.arm for source in node.inputs)
            return ("merge", node.context, arms), node.inputs
        case Call(callee=callee):
            return ("call", place), (graph.contexts[callee].outputs[number],)
        case Enter(loop=loop):
            return ("exit", place), (graph.contexts[loop].exits[number],)
        case Fork():
            return ("join", place, number), ()
        case _:
            return ("node", place), ()
