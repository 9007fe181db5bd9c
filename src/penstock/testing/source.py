"""Random programs as Python text that uses the public control-flow functions.

The text is what a user could have written: every branch and loop body is a nested function of its
own, and closes over what it reads. It can be pasted into a test; only `weight` has to be given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.testing.expressions import (
    BOOL,
    INT,
    RULES,
    VECTOR,
    WIDTH,
    Constant,
    Expression,
    Operation,
    Variable,
)
from penstock.testing.statements import (
    TRIPS,
    ArrayLoop,
    Block,
    Call,
    Cond,
    Each,
    Fold,
    Function,
    Let,
    MapEach,
    ReadElement,
    Scan,
    Statement,
    Switch,
    Variables,
    While,
)


def text_of(expression: Expression) -> str:
    """The text of an expression whose value is a tensor."""
    match expression:
        case Variable(name=name):
            return name
        case Constant(value=value, kind=kind):
            if kind in (INT, BOOL):
                return f"torch.tensor({value})"
            shape = f"({WIDTH},)" if kind is VECTOR else "()"
            return f"torch.full({shape}, {value}, dtype=torch.double)"
        case Operation(rule=rule, arguments=arguments):
            return RULES[rule].text.format(*_argument_texts(rule, arguments))


def value_text(expression: Expression) -> str:
    """The text of an expression where a Python number is taken for a tensor of its type."""
    if isinstance(expression, Constant) and expression.kind in (INT, BOOL):
        return str(expression.value)
    return text_of(expression)


def _argument_texts(rule: str, arguments: Sequence[Expression]) -> list[str]:
    if not RULES[rule].takes_numbers or all(isinstance(a, Constant) for a in arguments):
        return [in_brackets(argument, text_of(argument)) for argument in arguments]
    return [_operand_text(argument) for argument in arguments]


def _operand_text(argument: Expression) -> str:
    if isinstance(argument, Constant) and argument.kind is not VECTOR:
        return str(argument.value)
    return in_brackets(argument, text_of(argument))


def in_brackets(expression: Expression, text: str) -> str:
    """`text` with brackets where it is not a name, a number or a call."""
    if not isinstance(expression, Operation):
        return text
    rule = RULES[expression.rule].text
    is_call = rule.startswith(("torch.", "{0}.", "{0}[")) and rule.endswith((")", "]"))
    return text if is_call else f"({text})"


def names_of(variables: Variables) -> list[str]:
    """The names of variables."""
    return [variable.name for variable in variables]


def packed(texts: Sequence[str]) -> str:
    """One value stands for itself, any other number of them is a tuple."""
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def _packed_values(expressions: Sequence[Expression]) -> str:
    return packed([value_text(expression) for expression in expressions])


class SourceWriter:
    """The lines of a program, written from the first to the last."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._indent = 0
        #: How many names of functions and arrays were made.
        self._made = 0

    def function(self, function: Function, decorator: str | None = None) -> None:
        """Write a function of the program."""
        if decorator:
            self._line(decorator)
        with self._define(function.name, names_of(function.parameters)):
            self._block(function.body)

    def _line(self, text: str) -> None:
        self.lines.append("    " * self._indent + text)

    def _fresh(self, *stems: str) -> list[str]:
        self._made += 1
        return [f"{stem}_{self._made}" for stem in stems]

    @contextmanager
    def _define(self, name: str, parameters: Sequence[str]) -> Iterator[None]:
        self._line(f"def {name}({', '.join(parameters)}):")
        self._indent += 1
        yield
        self._indent -= 1

    def _statements(self, block: Block) -> None:
        for statement in block.statements:
            self._statement(statement)

    def _block(self, block: Block) -> None:
        self._statements(block)
        self._line(f"return {_packed_values(block.results)}")

    def _bind(self, targets: Variables, text: str) -> None:
        self._line(f"{', '.join(names_of(targets))} = {text}")

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Let(targets=targets, value=value):
                self._bind(targets, text_of(value))
            case Call(targets=targets, function=name, arguments=arguments):
                self._bind(targets, f"{name}({', '.join(map(text_of, arguments))})")
            case Cond() | Switch():
                self._branches(statement)
            case While():
                self._while(statement)
            case Scan():
                self._scan(statement)
            case Fold():
                self._fold(statement)
            case MapEach():
                self._map_each(statement)
            case ArrayLoop():
                self._array_loop(statement)
            case ReadElement():
                self._read_element(statement)

    def _branches(self, statement: Cond | Switch) -> None:
        names = []
        for branch in statement.branches:
            names += self._fresh("branch")
            with self._define(names[-1], names_of(statement.parameters)):
                self._block(branch)
        if isinstance(statement, Cond):
            choice = f"ps.cond({value_text(statement.predicate)}, {', '.join(names)}"
        else:
            index = in_brackets(statement.index, text_of(statement.index))
            choice = f"ps.switch({index} % {len(names)}, [{', '.join(names)}]"
        operands = " ".join(f"{value_text(operand)}," for operand in statement.operands)
        self._bind(statement.targets, choice + (f", ({operands}))" if operands else ")"))

    def _while(self, loop: While) -> None:
        goes_on, body = self._fresh("goes_on", "body")
        counters = [loop.counter.name] if loop.counter else []
        carried = counters + names_of(loop.state)
        with self._define(goes_on, carried):
            self._line(f"return {_while_condition(loop)}")
        with self._define(body, carried):
            self._statements(loop.body)
            results = [*(f"{name} - 1" for name in counters), *map(value_text, loop.body.results)]
            self._line(f"return {packed(results)}")
        count = f"{in_brackets(loop.count, text_of(loop.count))} % {TRIPS}"
        initial = [*(count for _ in counters), *map(value_text, loop.initial)]
        limit = "" if counters else f", maximum_iterations={value_text(loop.count)}"
        targets = ["_" for _ in counters] + names_of(loop.targets)
        loop_text = f"ps.while_loop({goes_on}, {body}, {packed(initial)}{limit})"
        self._line(f"{', '.join(targets)} = {loop_text}")

    def _scan(self, scan: Scan) -> None:
        step = self._step(scan, "step", returns_pair=True)
        states, results = scan.targets[: len(scan.state)], scan.targets[len(scan.state) :]
        reverse = ", reverse=True" if scan.reverse else ""
        self._line(
            f"{packed(names_of(states))}, {packed(names_of(results))} = ps.scan("
            f"{step}, {_packed_values(scan.initial)}, {_sequences(scan.each)}{reverse})"
        )

    def _fold(self, fold: Fold) -> None:
        step = self._step(fold, "combine")
        function = "ps.foldr" if fold.reverse else "ps.foldl"
        initial = _packed_values(fold.initial)
        self._bind(fold.targets, f"{function}({step}, {_sequences(fold.each)}, {initial})")

    def _step(self, loop: Scan | Fold, stem: str, returns_pair: bool = False) -> str:
        """Write the function of a state and an element, and return its name."""
        name, carry, element = self._fresh(stem, "carry", "element")
        with self._define(name, [carry, element]):
            self._bind(loop.state, carry)
            self._bind(loop.each.elements, element)
            self._statements(loop.body)
            states = loop.body.results[: len(loop.state)]
            results = loop.body.results[len(loop.state) :]
            pair = f", {_packed_values(results)}" if returns_pair else ""
            self._line(f"return {_packed_values(states)}{pair}")
        return name

    def _map_each(self, mapping: MapEach) -> None:
        name, element = self._fresh("each", "element")
        with self._define(name, [element]):
            self._bind(mapping.each.elements, element)
            self._block(mapping.body)
        self._bind(mapping.targets, f"ps.map_fn({name}, {_sequences(mapping.each)})")

    def _array_loop(self, loop: ArrayLoop) -> None:
        size, first, empty, before, after = self._fresh("size", "first", "empty", "before", "after")
        goes_on, body, array = self._fresh("goes_on", "body", "array")
        index = loop.index.name
        self._line(f"{size} = {in_brackets(loop.count, text_of(loop.count))} % {TRIPS}")
        self._line(f"{first} = {text_of(loop.initial)}")
        self._line(f"{empty} = ps.TensorArray({size} + 1, like={first})")
        self._line(f"{before} = {empty}.write(0, {first})")
        with self._define(goes_on, [index, array]):
            self._line(f"return {index} < {size}")
        with self._define(body, [index, array]):
            self._line(f"{loop.previous.name} = {array}.read({index})")
            self._statements(loop.body)
            element = value_text(loop.body.results[0])
            self._line(f"return {index} + 1, {array}.write({index} + 1, {element})")
        self._line(f"_, {after} = ps.while_loop({goes_on}, {body}, (0, {before}))")
        position = f"{in_brackets(loop.position, text_of(loop.position))} % ({size} + 1)"
        reads = f"{after}.stack(), {after}.read({position}), {before}.read(0)"
        self._bind(loop.targets, reads)

    def _read_element(self, read: ReadElement) -> None:
        present, absent = self._fresh("present", "absent")
        sequence = read.sequence.name
        index = f"{in_brackets(read.index, text_of(read.index))} % {sequence}.shape[0]"
        array = f"ps.TensorArray.unstack({sequence}).read({index})"
        with self._define(present, []):
            self._line(f"return {array if read.through_array else f'{sequence}[{index}]'}")
        with self._define(absent, []):
            self._line(f"return {value_text(read.default)}")
        self._bind(read.targets, f"ps.cond({sequence}.shape[0] > 0, {present}, {absent})")


def _while_condition(loop: While) -> str:
    if loop.counter is None:
        return value_text(loop.predicate)
    if loop.predicate == Constant(True, BOOL):
        return f"{loop.counter.name} > 0"
    return f"({loop.counter.name} > 0) & ({value_text(loop.predicate)})"


def _sequences(each: Each) -> str:
    return packed([text_of(sequence) for sequence in each.sequences])
