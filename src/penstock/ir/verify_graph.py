"""Whether a graph is well formed: a table of rules, each a generator of what breaks it.

Tests run it on every graph that passes make; nothing runs it in production. A rule may rely on the
rules above it, which are checked first. Rules on the insides of nodes are in `verify_nodes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from penstock.ir.copies import copies
from penstock.ir.graph import (
    Call,
    Context,
    Enter,
    Fork,
    Graph,
    Home,
    Merge,
    Node,
    Switch,
    Wire,
)
from penstock.ir.verify import Rule, apply_rules, are_copies
from penstock.ir.verify_nodes import NODE_RULES


def verify_graph(graph: Graph) -> None:
    """Raise `VerificationError` unless the graph keeps all rules."""
    apply_rules(GRAPH_RULES, graph)


def _opened(node: Node) -> int | None:
    """The inner context that a node opens."""
    match node.operation:
        case Enter(loop=inner) | Fork(each=inner):
            return inner
        case _:
            return None


def _arms_around(context: Context, arm: int | None) -> Iterator[int]:
    """The arm and those around it, innermost first."""
    while arm is not None:
        yield arm
        arm = context.arms[arm]


def _contexts_nest(graph: Graph) -> Iterator[str]:
    openers = Counter(inner for node in graph.nodes if (inner := _opened(node)) is not None)
    for position, context in enumerate(graph.contexts):
        if context.index != position:
            yield f"{context.name} is number {context.index} at position {position}"
        if (context.kind == "function") != (context.parent is None):
            yield f"{context.name} is a {context.kind} inside {context.parent}"
        if openers[position] != (context.kind != "function"):
            yield f"{context.name} is opened {openers[position]} times"
    for node in graph.nodes:
        inner = _opened(node)
        if inner is not None and graph.contexts[inner].parent != node.context:
            yield f"{graph.contexts[inner].name} is opened in another context than its parent"
        if isinstance(node.operation, Call) and node.operation.callee == 0:
            yield f"the entry {graph.contexts[0].name} is called"


def _arms_open_once(graph: Graph) -> Iterator[str]:
    for context in graph.contexts:
        switches = [node for node in context.nodes if isinstance(node.operation, Switch)]
        opened = [(arm, node.arm) for node in switches for arm in _arms_of(node)]
        expected = [(arm, parent) for arm, parent in enumerate(context.arms) if parent is not None]
        if sorted(opened) != expected or context.arms[0] is not None:
            yield f"{context.name} has arms {expected} and Switches for {sorted(opened)}"


def _arms_of(node: Node) -> tuple[int, ...]:
    return node.operation.arms if isinstance(node.operation, Switch) else ()


def _one_maker(graph: Graph) -> Iterator[str]:
    makers = Counter(_made(graph))
    for wire, count in makers.items():
        if count > 1:
            yield f"{wire}: {wire.type} has {count} makers"
    for wire in _read(graph):
        if wire not in makers:
            yield f"{wire}: {wire.type} is read and has no maker"


def _made(graph: Graph) -> Iterator[Wire]:
    yield from (uniform.wire for uniform in graph.uniforms)
    for item in graph.inputs:
        yield from (wire for wire in (item.host, item.slot) if wire is not None)
    for context in graph.contexts:
        yield from context.inputs
        for node in context.nodes:
            yield from node.outputs


def _read(graph: Graph) -> Iterator[Wire]:
    yield from (wire for uniform in graph.uniforms for wire in uniform.inputs)
    for context in graph.contexts:
        yield from (*context.outputs, *context.exits)
        yield from (wire for node in context.nodes for wire in node.inputs)


def _inputs_are_numbered(graph: Graph) -> Iterator[str]:
    for number, item in enumerate(graph.inputs):
        for wire, home in ((item.host, Home.HOST), (item.slot, Home.SLOT)):
            if wire is not None and (wire.input, wire.home) != (number, home):
                yield f"input {number} on {home} is the wire of input {wire.input} on {wire.home}"
        if (item.number is None) == (item.uniform is None):
            yield f"input {number} is not either an argument or a uniform value"


def _wires_are_where_they_are_made(graph: Graph) -> Iterator[str]:
    for context in graph.contexts:
        for wire in context.inputs:
            if (wire.context, wire.arm) != (context.index, 0):
                yield f"{wire}, an input of {context.name}, is in {wire.context}, arm {wire.arm}"
        for node in context.nodes:
            for wire in node.outputs:
                if (wire.context, wire.arm) != (node.context, node.arm):
                    yield f"{wire}, made in {node.context}, arm {node.arm}, says otherwise"
            if node.context != context.index:
                yield f"a node of {context.name} says that it is in {node.context}"


def _seen(graph: Graph) -> Iterator[str]:
    """Reads of wires from arms that not every row of the reader has entered."""
    places = {inner: node for node in graph.nodes if (inner := _opened(node)) is not None}
    for node in graph.nodes:
        if isinstance(node.operation, Merge):
            continue
        for wire in node.inputs:
            if wire.is_of_row and not _is_visible(graph, places, node, wire):
                name = type(node.operation).__name__
                yield f"{name} in {node.context}, arm {node.arm} reads {wire}: {wire.type}"


def _is_visible(graph: Graph, places: Mapping[int, Node], reader: Node, wire: Wire) -> bool:
    while reader.context != wire.context:
        if reader.context not in places:
            return False
        reader = places[reader.context]
    return wire.arm in _arms_around(graph.contexts[reader.context], reader.arm)


def _in_order(graph: Graph) -> Iterator[str]:
    """Wires that are read above the node that makes them, nodes of arms above their Switch."""
    for context in graph.contexts:
        ready = set(context.inputs)
        arms = {0}
        for node in context.nodes:
            for wire in node.inputs:
                if wire.is_of_row and wire.context == context.index and wire not in ready:
                    yield f"{context.name}: {type(node.operation).__name__} reads {wire} too early"
            if node.arm not in arms:
                yield f"{context.name}: a node of arm {node.arm} comes before its Switch"
            arms.update(_arms_of(node))
            ready.update(node.outputs)


def _merges_take_arms(graph: Graph) -> Iterator[str]:
    for context in graph.contexts:
        switches = {_arms_of(node) for node in context.nodes if _arms_of(node)}
        for node in context.nodes:
            if not isinstance(node.operation, Merge):
                continue
            arms = tuple(wire.arm for wire in node.inputs)
            if arms not in switches or any(wire.context != context.index for wire in node.inputs):
                yield f"{context.name}: a Merge takes wires of arms {arms}"


def _leaving_wires_are_made(graph: Graph) -> Iterator[str]:
    for context in graph.contexts:
        made = {wire for node in context.nodes for wire in node.outputs}
        arm = 2 if context.kind == "loop" else 0
        for wires, where in ((context.outputs, arm), (context.exits, 1)):
            for wire in wires:
                if wire not in made or wire.arm != where:
                    yield f"{wire} leaves {context.name} from arm {where} and is not made there"


def _invariants_are_listed(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        match node.operation:
            case Enter(loop=inner, carried=count):
                listed = set(node.inputs[count:])
            case Fork(each=inner, elements=count):
                listed = set(node.inputs[count + 1 :])
            case _:
                continue
        inside = _inside(graph, inner)
        read = {wire for index in inside for n in graph.contexts[index].nodes for wire in n.inputs}
        missing = {w for w in read if w.is_of_row and w.context not in inside} ^ listed
        if missing:
            names = ", ".join(sorted(map(str, missing)))
            yield f"{graph.contexts[inner].name} reads or lists, and not both: {names}"


def _inside(graph: Graph, index: int) -> set[int]:
    inside = {index}
    for context in graph.contexts:
        if context.parent in inside:
            inside.add(context.index)
    return inside


def _copies_agree(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        name = type(node.operation).__name__
        for sources, targets in copies(graph, node):
            if len(sources) != len(targets):
                yield f"{name} copies {len(sources)} wires to {len(targets)}"
                continue
            for source, target in zip(sources, targets, strict=True):
                if source.home is not target.home or not are_copies(source.type, target.type):
                    yield f"{name} copies {source}: {source.type} to {target}: {target.type}"


GRAPH_RULES: Mapping[str, Rule[Graph]] = {
    "contexts nest as their openers do": _contexts_nest,
    "every arm is opened by one Switch": _arms_open_once,
    "every wire has one maker": _one_maker,
    "inputs are numbered as they are listed": _inputs_are_numbered,
    "a wire is where its maker is": _wires_are_where_they_are_made,
    "a wire is read where it can be seen": _seen,
    "a wire is made before it is read": _in_order,
    "a Merge takes one wire of each arm of a Switch": _merges_take_arms,
    "what leaves a context is made in the arm that it leaves from": _leaving_wires_are_made,
    "an inner context lists what it reads from outside": _invariants_are_listed,
    "copies agree in number, home and type": _copies_agree,
    **NODE_RULES,
}
