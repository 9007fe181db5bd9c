"""How values flow through a program: who defines a value, which values are copied into it, and
where it comes from.

Control flow only copies values (arguments to parameters, results to callers, branch outputs to
merges, loop carries). A value all of whose copies have one origin *is* that origin: it needs no row
of its own. Nothing is rewritten here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.ir.program import (
    Body,
    Branch,
    Call,
    Captured,
    Constant,
    ForEach,
    Function,
    Loop,
    Node,
    Program,
    Value,
)


@dataclass(frozen=True, slots=True)
class Definition:
    """The node that defines a value, or the function or node whose body has it as an input."""

    node: Node | None
    index: int
    is_output: bool
    function: Function


@dataclass(slots=True)
class Flow:
    """The facts of one program; filled by `analyse_flow`, then only read."""

    program: Program
    definitions: dict[Value, Definition] = field(default_factory=dict)
    #: The values that control flow copies into a value; absent for values that operations compute.
    sources: dict[Value, list[Value]] = field(default_factory=dict)
    #: Parameters and results of calls: copies between rows of different functions.
    across: set[Value] = field(default_factory=set)
    #: Calls of each function, by name.
    sites: dict[str, list[Node]] = field(default_factory=dict)
    origins: dict[Value, Value] = field(default_factory=dict)

    def root(self, value: Value) -> Value:
        """The value that this one always equals."""
        return self.origins.get(value, value)


def analyse_flow(program: Program) -> Flow:
    """Definitions, copies, call sites and origins of all values."""
    flow = Flow(program)
    for function in program.functions:
        flow.sites.setdefault(function.name, [])
        for index, value in enumerate(function.body.inputs):
            flow.definitions[value] = Definition(None, index, False, function)
            if function is not program.entry:
                flow.sources[value] = []
    for function in program.functions:
        for node in function.body.walk():
            _define_node(flow, node, function)
    for function in program.functions:
        for node in flow.sites[function.name]:
            _copy_all(flow, node.inputs, function.body.inputs)
            _copy_all(flow, function.body.outputs, node.outputs)
            flow.across.update(function.body.inputs, node.outputs)
    _find_origins(flow)
    return flow


def _define_node(flow: Flow, node: Node, function: Function) -> None:
    for index, value in enumerate(node.outputs):
        flow.definitions[value] = Definition(node, index, True, function)
    for body in node.bodies:
        for index, value in enumerate(body.inputs):
            flow.definitions[value] = Definition(node, index, False, function)
    match node.operation:
        case Call(function=name):
            flow.sites[name].append(node)
        case Branch(bodies=bodies):
            for body in bodies:
                _copy_all(flow, body.outputs, node.outputs)
        case Loop(condition=condition, body=body):
            _copy_all(flow, node.inputs, condition.inputs)
            _copy_all(flow, body.outputs, condition.inputs)
            _copy_all(flow, condition.inputs, body.inputs)
            _copy_all(flow, condition.inputs, node.outputs)


def _copy_all(flow: Flow, sources: tuple[Value, ...], targets: tuple[Value, ...]) -> None:
    for source, target in zip(sources, targets, strict=True):
        flow.sources.setdefault(target, []).append(source)


def _find_origins(flow: Flow) -> None:
    """Optimistic fixpoint: a copy has the one origin of its sources, unless they differ."""
    scopes = _scopes(flow.program, flow.across)
    unknown: dict[Value, Value | None] = dict.fromkeys(flow.sources)
    is_changed = True
    while is_changed:
        is_changed = False
        for target, sources in flow.sources.items():
            if unknown[target] is target:
                continue
            found = {unknown.get(source, source) for source in sources} - {None, target}
            origin = found.pop() if len(found) == 1 else target if found else None
            if origin is not None and origin is not target and not scopes.sees(target, origin):
                origin = target
            if origin is not unknown[target]:
                unknown[target] = origin
                is_changed = True
    flow.origins = {target: origin for target, origin in unknown.items() if origin is not None}


@dataclass(slots=True)
class _Scopes:
    """Which body defines a value, and which bodies are around a body."""

    program: Program
    across: set[Value]
    home: dict[Value, Body] = field(default_factory=dict)
    parents: dict[Body, Body | None] = field(default_factory=dict)
    anywhere: set[Value] = field(default_factory=set)

    def sees(self, value: Value, other: Value) -> bool:
        """Whether `other` can be read wherever `value` can."""
        if other in self.anywhere:
            return True
        if value in self.across:
            return False
        body: Body | None = self.home[value]
        while body is not None:
            if self.home[other] is body:
                return True
            body = self.parents[body]
        return False


def _scopes(program: Program, across: set[Value]) -> _Scopes:
    scopes = _Scopes(program, across)
    scopes.anywhere.update(program.entry.body.inputs)
    for function in program.functions:
        for body, parent in _bodies(function.body, None):
            scopes.parents[body] = parent
            scopes.home.update(dict.fromkeys(body.inputs, body))
            for node in body.nodes:
                scopes.home.update(dict.fromkeys(node.outputs, body))
                if isinstance(node.operation, Captured | Constant):
                    scopes.anywhere.update(node.outputs)
    return scopes


def _bodies(body: Body, parent: Body | None) -> Iterator[tuple[Body, Body | None]]:
    yield body, parent
    for node in body.nodes:
        outer = body
        for inner in node.bodies:
            yield from _bodies(inner, outer)
            if isinstance(node.operation, Loop):
                outer = inner  # the body of a loop sees what its condition sees


def is_element(definition: Definition) -> bool:
    """Whether the value is the element that a for-each hands to its body."""
    node = definition.node
    return node is not None and not definition.is_output and isinstance(node.operation, ForEach)
