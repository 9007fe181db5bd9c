"""Whether a program is well formed: a table of rules, each a generator of what breaks it.

Tests run it after each pass over programs; nothing runs it in production. A rule may rely on the
rules above it, which are checked first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from penstock.ir.program import (
    ArrayRead,
    ArrayWrite,
    Body,
    Branch,
    Call,
    Captured,
    Element,
    ForEach,
    Function,
    Loop,
    Node,
    Operand,
    Program,
    RandomKey,
    RowLoop,
    TorchCall,
    Value,
)
from penstock.ir.types import ArrayType, TensorType, Type

Checked = TypeVar("Checked")
Rule = Callable[[Checked], Iterator[str]]


class VerificationError(AssertionError):
    """A program or graph breaks a rule; made by a pass that has a bug."""

    def __init__(self, rule: str, faults: list[str]) -> None:
        super().__init__("\n  ".join([f"not so: {rule}", *faults]))
        self.rule = rule


def apply_rules(rules: Mapping[str, Rule[Checked]], item: Checked) -> None:
    """Check rule after rule; the first that is broken raises."""
    for name, rule in rules.items():
        faults = list(rule(item))
        if faults:
            raise VerificationError(name, faults)


def verify_program(program: Program) -> None:
    """Raise `VerificationError` unless the program keeps all rules."""
    apply_rules(PROGRAM_RULES, program)


def are_copies(source: Type, target: Type) -> bool:
    """Whether a value of one type can be copied to a value of the other.

    Symbols may differ: the sizes that two symbols stand for may be equal. So may the types of array
    elements where nothing is known of them yet.
    """
    if isinstance(source, ArrayType) and isinstance(target, ArrayType):
        first, second = source.element, target.element
        return first is None or second is None or are_copies(first, second)
    if not (isinstance(source, TensorType) and isinstance(target, TensorType)):
        return False
    if (source.dtype, source.device) != (target.dtype, target.device):
        return False
    return len(source.shape) == len(target.shape) and all(
        first == second or (isinstance(first, str) and isinstance(second, str))
        for first, second in zip(source.shape, target.shape, strict=True)
    )


def _bodies(program: Program) -> Iterator[Body]:
    for function in program.functions:
        yield function.body
        for node in function.body.walk():
            yield from node.bodies


def _nodes(program: Program) -> Iterator[Node]:
    for function in program.functions:
        yield from function.body.walk()


def _once(program: Program) -> Iterator[str]:
    defined = [value for body in _bodies(program) for value in body.inputs]
    defined += [value for node in _nodes(program) for value in node.outputs]
    for value, count in Counter(defined).items():
        if count > 1:
            yield f"{value}: {value.type} is defined {count} times"


def _in_scope(program: Program) -> Iterator[str]:
    for function in program.functions:
        yield from _unseen(function.body, set(), function)


def _unseen(body: Body, outer: set[Value], function: Function) -> Iterator[str]:
    """What a body reads that neither it nor the bodies around it have defined."""
    seen = outer | set(body.inputs)
    for node in body.nodes:
        for value in node.inputs:
            if value not in seen:
                yield f"{function.name}: {_word(node)} reads {value}: {value.type}"
        for inner in node.bodies:
            yield from _unseen(inner, seen, function)
        seen |= set(node.outputs)
    for value in body.outputs:
        if value not in seen:
            yield f"{function.name}: a body returns {value}: {value.type}"


def _called_functions_exist(program: Program) -> Iterator[str]:
    names = Counter(function.name for function in program.functions)
    for name, count in names.items():
        if count > 1:
            yield f"{count} functions are called {name}"
    for node in _nodes(program):
        if isinstance(node.operation, Call) and node.operation.function not in names:
            yield f"there is no function {node.operation.function}"


def _copies(node: Node, program: Program) -> Iterator[tuple[tuple[Value, ...], tuple[Value, ...]]]:
    """What control flow copies at a node: sources and targets."""
    match node.operation:
        case Branch(bodies=bodies):
            yield from ((body.outputs, node.outputs) for body in bodies)
        case Loop(condition=condition, body=body):
            yield node.inputs, condition.inputs
            yield condition.inputs, body.inputs
            yield body.outputs, condition.inputs
            yield condition.inputs, node.outputs
        case Call(function=name):
            callee = program.function(name).body
            yield node.inputs, callee.inputs
            yield callee.outputs, node.outputs


def _copies_agree(program: Program) -> Iterator[str]:
    for node in _nodes(program):
        for sources, targets in _copies(node, program):
            if len(sources) != len(targets):
                yield f"{_word(node)} copies {len(sources)} values to {len(targets)}"
                continue
            for source, target in zip(sources, targets, strict=True):
                if not are_copies(source.type, target.type):
                    yield f"{_word(node)} copies {source.type} to {target.type}"


def _choices_are_scalars(program: Program) -> Iterator[str]:
    for node in _nodes(program):
        match node.operation:
            case Branch(bodies=bodies, is_cond=is_cond):
                chosen = node.inputs
                if is_cond and len(bodies) != 2:
                    yield f"a cond has {len(bodies)} bodies"
            case Loop(condition=condition):
                chosen = condition.outputs
            case _:
                continue
        kinds = [value.type for value in chosen]
        if len(kinds) != 1 or not isinstance(kinds[0], TensorType) or not kinds[0].is_scalar:
            yield f"{_word(node)} chooses by {', '.join(map(str, kinds)) or 'nothing'}"


def _indices_are_integers(program: Program) -> Iterator[str]:
    for node in _nodes(program):
        if not isinstance(node.operation, Element | ArrayRead | ArrayWrite):
            continue
        kind = node.inputs[1].type
        if not isinstance(kind, TensorType) or not kind.is_scalar or kind.dtype.startswith("float"):
            yield f"{_word(node)} has the index {kind}"


def _for_each_takes_elements(program: Program) -> Iterator[str]:
    for node in _nodes(program):
        if not isinstance(node.operation, ForEach):
            continue
        elements = node.operation.body.inputs
        if len(elements) != len(node.inputs):
            yield f"a for-each over {len(node.inputs)} sequences takes {len(elements)} elements"
            continue
        for sequence, element in zip(node.inputs, elements, strict=True):
            kind = sequence.type
            if not isinstance(kind, TensorType) or not kind.shape or kind.element != element.type:
                yield f"an element of {kind} is {element.type}"


def _operands_are_inputs(program: Program) -> Iterator[str]:
    for node in _nodes(program):
        if not isinstance(node.operation, TorchCall):
            continue
        call = node.operation
        used = set(_operands((call.args, tuple(item for _, item in call.kwargs))))
        if used != set(range(len(node.inputs))):
            yield f"{call.name} has {len(node.inputs)} inputs and takes {sorted(used)}"
        if not call.sizes <= used:
            yield f"{call.name} has sizes {sorted(call.sizes)} and takes {sorted(used)}"


def _operands(item: object) -> Iterator[int]:
    if isinstance(item, Operand):
        yield item.index
    elif isinstance(item, tuple):
        for part in item:
            yield from _operands(part)
    elif isinstance(item, slice):
        yield from _operands((item.start, item.stop, item.step))


def _captures_exist(program: Program) -> Iterator[str]:
    for node in _nodes(program):
        if not isinstance(node.operation, Captured):
            continue
        index, kind = node.operation.index, node.outputs[0].type
        if index >= len(program.captures):
            yield f"capture {index} of {len(program.captures)}"
        elif not are_copies(program.captures[index], kind):
            yield f"capture {index} is {program.captures[index]}, not {kind}"


def _sites_are_distinct(program: Program) -> Iterator[str]:
    for body in _bodies(program):
        opening = (Call, Branch, Loop, ForEach, RandomKey)
        sites = Counter(n.site for n in body.nodes if isinstance(n.operation, opening))
        for site, count in sites.items():
            if count > 1:
                yield f"{count} nodes of one body have site {site}"


def _closed_loops_are_closed(program: Program) -> Iterator[str]:
    for node in _nodes(program):
        if isinstance(node.operation, RowLoop):
            body = node.operation.body
            if len(body.inputs) != len(node.inputs) or len(body.outputs) != len(node.outputs):
                yield f"a closed loop takes {len(body.inputs)} values and gets {len(node.inputs)}"
            yield from _unseen(body, set(), Function("a closed loop", body))


def _word(node: Node) -> str:
    return getattr(node.operation, "name", type(node.operation).__name__)


PROGRAM_RULES: Mapping[str, Rule[Program]] = {
    "a value is defined once": _once,
    "a value is defined before it is read, in a body around": _in_scope,
    "a call names a function of the program": _called_functions_exist,
    "copies agree in number and type": _copies_agree,
    "a branch or loop is chosen by one scalar": _choices_are_scalars,
    "an index is a whole number": _indices_are_integers,
    "a for-each takes one element of each sequence": _for_each_takes_elements,
    "a torch call takes all its inputs": _operands_are_inputs,
    "a closed loop reads its inputs and nothing else": _closed_loops_are_closed,
    "a capture is one of the program's": _captures_exist,
    "what draws random keys in a body has a site of its own": _sites_are_distinct,
}
