"""Graphs as short text that a person can read and diff.

A loop is printed under its Enter, a for-each under its Fork, the arms of a Switch under it, so that
every wire is made above the lines that read it. What has no node has a word of its own at the end
of its arm: `next_iteration`, `exit`, `join`, `return`. Wires are renumbered in the order of the
text (h: on the host, s: in a slot, u: uniform). Source lines are left out: they change with every
edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from penstock.ir.graph import (
    BODY,
    Block,
    Call,
    Compute,
    Context,
    Elsewhere,
    Enter,
    Fork,
    Graph,
    HostStep,
    Input,
    Key,
    Node,
    Primitive,
    Recv,
    Send,
    Switch,
    Uniform,
    Wire,
)
from penstock.ir.printer import call_text, limits_text, word_of
from penstock.ir.program import Captured, Constant, TorchCall, Value


def print_graph(graph: Graph) -> str:
    """The whole graph: inputs, uniform computations, then one part for each function."""
    printer = _Printer(graph)
    parts = [printer.inputs(), printer.uniforms()]
    parts += [printer.function(context) for context in graph.contexts if context.kind == "function"]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


class _Printer:
    """Names the wires of a graph while it prints them."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._names: dict[Wire, str] = {}
        #: How many wires of the function at hand have a name.
        self._count = 0

    def inputs(self) -> list[str]:
        """What rows find through their instance."""
        return [self._input(number, item) for number, item in enumerate(self._graph.inputs)]

    def uniforms(self) -> list[str]:
        """What is computed once per call; the outputs of one call on one line."""
        together: dict[int, list[Uniform]] = {}
        for uniform in self._graph.uniforms:
            together.setdefault(id(uniform.node), []).append(uniform)
        return [self._uniform(group) for group in together.values()]

    def function(self, context: Context) -> list[str]:
        """A function with everything that is nested in it."""
        self._count = 0
        header = f"function {context.name}({self._typed(context.inputs)}):"
        return [header, *self._arm(context, 0, 1)]

    def _input(self, number: int, item: Input) -> str:
        homes = [form for form, wire in (("host", item.host), ("slot", item.slot)) if wire]
        use = f"as {' and '.join(homes)}" if homes else "not read"
        text = f"input{number}: {item.type} {use}"
        return text if item.uniform is None else f"{text}, the uniform {self._name(item.uniform)}"

    def _uniform(self, group: list[Uniform]) -> str:
        first = group[0]
        match first.node.operation:
            case Captured(index=index):
                text = f"captured {index}"
            case Constant(value=value):
                text = f"constant {value}"
            case TorchCall() as call:
                text = call_text(call, list(map(self._name, first.inputs)))
            case operation:
                text = f"{word_of(type(operation).__name__)}({self._list(first.inputs)})"
        return f"{self._typed([uniform.wire for uniform in group])} = {text}"

    def _arm(self, context: Context, arm: int, depth: int) -> Iterator[str]:
        """The nodes of one arm, and the values that leave the context from it."""
        indent = "  " * depth
        for node in context.nodes:
            if node.arm != arm:
                continue
            outputs = self._typed(node.outputs)
            yield (
                f"{indent}{outputs} = {self._node(node)}" if outputs else indent + self._node(node)
            )
            yield from self._inside(context, node, depth + 1)
        for word, wires in leaving(context, arm):
            yield f"{indent}{word} {self._list(wires)}".rstrip()

    def _node(self, node: Node) -> str:
        inputs = self._list(node.inputs)
        match node.operation:
            case Compute(steps=(step,)):
                return f"compute {self._step(step)}"
            case Block(name=name, is_flat=is_flat, device=device):
                where = "" if device is None else f" on {device}"
                return f"{'flat block' if is_flat else 'block'} {name}({inputs}){where}"
            case Switch():
                return f"switch {inputs}"
            case Call(callee=callee):
                return f"call {self._graph.contexts[callee].name}({inputs})"
            case Enter():
                return self._enter(node, node.operation)
            case Fork():
                return self._fork(node, node.operation)
            case Primitive(name=name):
                return f"{word_of(name)}({inputs}){_options(node.operation)}"
            case Key(path=path):
                names = ("body" if salt == BODY else str(salt) for salt in path)
                return f"random_key path {'.'.join(names)}"
            case Send(targets=targets):
                return f"send {inputs} to {', '.join(map(str, targets))}"
            case Recv(source=source):
                return f"recv from {source}"
            case Elsewhere(source=source):
                return f"elsewhere, on {source}"
            case operation:
                return f"{word_of(type(operation).__name__)}({inputs})"

    def _enter(self, node: Node, enter: Enter) -> str:
        loop = self._graph.contexts[enter.loop]
        limits = limits_text(loop.maximum_iterations, loop.parallel_iterations)
        initial, read = node.inputs[: enter.carried], node.inputs[enter.carried :]
        return f"enter {loop.name}({self._list(initial)}){limits}{self._reads(read)}"

    def _fork(self, node: Node, fork: Fork) -> str:
        name = self._graph.contexts[fork.each].name
        length, *others = node.inputs
        elements, read = others[: fork.elements], others[fork.elements :]
        counted = f" for each element of {self._name(length)}"
        return f"fork {name}({self._list(elements)}){counted}{self._reads(read)}"

    def _reads(self, wires: Sequence[Wire]) -> str:
        return f" reads {self._list(wires)}" if wires else ""

    def _inside(self, context: Context, node: Node, depth: int) -> Iterator[str]:
        """What is printed under a node."""
        indent = "  " * depth
        match node.operation:
            case Compute(steps=steps) if len(steps) > 1:
                for step in steps:
                    yield f"{indent}{self._name(step.output)} = {self._step(step)}"
            case Block():
                yield from (indent + line for line in self._block(node, node.operation))
            case Switch(arms=arms):
                for label, arm in zip(_labels(context, node.operation), arms, strict=True):
                    yield f"{indent}{label}:"
                    yield from self._arm(context, arm, depth + 1)
            case Enter(loop=inner) | Fork(each=inner):
                body = self._graph.contexts[inner]
                yield f"{indent}{body.kind}({self._typed(body.inputs)}):"
                yield from self._arm(body, 0, depth + 1)

    def _step(self, step: HostStep) -> str:
        operands = [self._name(x) if isinstance(x, Wire) else repr(x) for x in step.operands]
        return f"{step.name}({', '.join(operands)})"

    def _block(self, node: Node, block: Block) -> Iterator[str]:
        """The torch calls of a block; its inputs and outputs have the names of their wires."""
        names = dict(zip(block.parameters, map(self._name, node.inputs), strict=True))
        names |= dict(zip(block.results, map(self._name, node.outputs), strict=True))
        for step in block.nodes:
            inputs = [_name_inside(names, value) for value in step.inputs]
            outputs = ", ".join(_name_inside(names, value) for value in step.outputs)
            if isinstance(step.operation, TorchCall):
                yield f"{outputs} = {call_text(step.operation, inputs)}"
            else:
                word = word_of(type(step.operation).__name__)
                yield f"{outputs} = {word}({', '.join(inputs)})"

    def _typed(self, wires: Iterable[Wire]) -> str:
        return ", ".join(f"{self._name(wire)}: {wire.type}" for wire in wires)

    def _list(self, wires: Iterable[Wire]) -> str:
        return ", ".join(map(self._name, wires))

    def _name(self, wire: Wire) -> str:
        if wire not in self._names:
            self._names[wire] = self._new_name(wire)
        return self._names[wire]

    def _new_name(self, wire: Wire) -> str:
        if wire.input is not None:
            return f"input{wire.input}.{wire.home}"
        if wire.home == "uniform":
            return f"u{sum(name[0] == 'u' for name in self._names.values())}"
        self._count += 1
        return f"{wire.home[0]}{self._count - 1}"


def _name_inside(names: dict[Value, str], value: Value) -> str:
    """The name of a value of a block; those that stay inside are numbered."""
    return names.setdefault(value, f"%{sum(name[0] == '%' for name in names.values())}")


def _labels(context: Context, switch: Switch) -> list[str]:
    if context.kind == "loop" and switch.arms == (1, 2):
        return ["otherwise", "while true"]
    if switch.is_cond:
        return ["false", "true"]
    return [f"branch {number}" for number in range(len(switch.arms))]


def leaving(context: Context, arm: int) -> list[tuple[str, tuple[Wire, ...]]]:
    """What leaves the context at the end of an arm, with the paper's word for it."""
    match context.kind, arm:
        case "function", 0:
            return [("return", context.outputs)]
        case "each", 0:
            return [("join", context.outputs)]
        case "loop", 1:
            return [("exit", context.exits)]
        case "loop", 2:
            return [("next_iteration", context.outputs)]
        case _:
            return []


def _options(operation: Primitive) -> str:
    if operation.name == "Size":
        return f" of dimension {operation.dimension}"
    return " dynamic" if operation.dynamic_size else ""
