"""Programs as short text that a person can read and diff.

Values are renumbered in the order in which they are printed, so that the text does not depend on
how a program was made. Nested bodies are indented under their node. Source lines are left out: they
change with every edit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.ir.program import (
    ArrayNew,
    Body,
    Branch,
    Call,
    Captured,
    Constant,
    ForEach,
    Function,
    Loop,
    Node,
    Operand,
    Program,
    RandomKey,
    RowLoop,
    Size,
    TorchCall,
    Value,
)


def print_program(program: Program) -> str:
    """The whole program, entry first."""
    return "\n\n".join(print_function(function, program) for function in program.functions)


def print_function(function: Function, program: Program) -> str:
    """One function with its signature and its body."""
    printer = _Printer(program)
    header = f"def {function.name}({printer.typed(function.body.inputs)}):"
    return "\n".join([header, *printer.lines(function.body, 1)])


class _Printer:
    """Numbers the values of one function while it prints them."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._numbers: dict[Value, int] = {}

    def lines(self, body: Body, depth: int) -> Iterator[str]:
        """The nodes and the outputs of a body."""
        indent = "  " * depth
        for node in body.nodes:
            text = self._node(node) + ("" if node.device is None else f" on {node.device}")
            outputs = self.typed(node.outputs)
            yield f"{indent}{outputs} = {text}" if outputs else f"{indent}{text}"
            for label, inner in self._bodies(node):
                inputs = self.typed(inner.inputs)
                yield f"{indent}  {label}({inputs}):" if inputs else f"{indent}  {label}:"
                yield from self.lines(inner, depth + 2)
        yield f"{indent}return {self._names(body.outputs)}".rstrip()

    def typed(self, values: tuple[Value, ...]) -> str:
        """Values with their types, as where they are defined."""
        return ", ".join(f"{self._name(value)}: {value.type}" for value in values)

    def _node(self, node: Node) -> str:
        match node.operation:
            case TorchCall():
                return call_text(node.operation, list(map(self._name, node.inputs)))
            case Constant(value=value):
                return f"constant {value}"
            case Captured(index=index):
                return f"captured {self._capture_name(index)}"
            case Call(function=name):
                return f"call {name}({self._names(node.inputs)})"
            case RandomKey(site=site):
                return f"random_key site {'.'.join(map(str, site))}"
            case operation:
                name = word_of(type(operation).__name__)
                return f"{name}({self._names(node.inputs)}){_options(operation)}"

    def _bodies(self, node: Node) -> list[tuple[str, Body]]:
        match node.operation:
            case Branch(bodies=bodies, is_cond=True):
                return list(zip(("false", "true"), bodies, strict=True))
            case Branch(bodies=bodies):
                return [(f"branch {number}", body) for number, body in enumerate(bodies)]
            case Loop(condition=condition, body=body):
                return [("while", condition), ("do", body)]
            case ForEach(body=body):
                return [("each", body)]
            case RowLoop(body=body):
                return [("row", body)]
            case _:
                return []

    def _capture_name(self, index: int) -> str:
        names = self._program.capture_names
        return names[index] if index < len(names) else str(index)

    def _names(self, values: tuple[Value, ...]) -> str:
        return ", ".join(map(self._name, values))

    def _name(self, value: Value) -> str:
        return f"%{self._numbers.setdefault(value, len(self._numbers))}"


def word_of(name: str) -> str:
    """The word for an operation: its record's name in small letters, as in `array_read`."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)[1:]


def call_text(call: TorchCall, names: Sequence[str]) -> str:
    """A torch call with its operands by name."""
    args = [_argument_text(item, names) for item in call.args]
    args += [f"{name}={_argument_text(item, names)}" for name, item in call.kwargs]
    return f"{call.name}({', '.join(args)})"


def _argument_text(item: object, names: Sequence[str]) -> str:
    if isinstance(item, Operand):
        return names[item.index]
    if isinstance(item, tuple):
        inner = ", ".join(_argument_text(part, names) for part in item)
        return f"({inner},)" if len(item) == 1 else f"({inner})"
    if isinstance(item, slice):
        ends = (item.start, item.stop) if item.step is None else (item.start, item.stop, item.step)
        return ":".join("" if end is None else _argument_text(end, names) for end in ends)
    return repr(item)


def _options(operation: object) -> str:
    match operation:
        case Size(dimension=dimension):
            return f" of dimension {dimension}"
        case ArrayNew(dynamic_size=True):
            return " dynamic"
        case Loop(maximum_iterations=maximum, parallel_iterations=parallel):
            return limits_text(maximum, parallel)
        case _:
            return ""


def limits_text(maximum: int | None, parallel: int | None) -> str:
    """The bounds of a loop, if it has any."""
    limits = [f" at most {maximum} times"] if maximum is not None else []
    limits += [f" {parallel} in flight"] if parallel is not None else []
    return "".join(limits)
