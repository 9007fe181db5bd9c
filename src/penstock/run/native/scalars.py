"""A closed loop taken apart into operations on scalars: every element is a variable of its own.

Variables are assigned once, but for what a loop carries: these hold the initial values before the
loop, the current ones in it, and the final ones after it. Broadcasting, casts and reductions are
spelled out here, so that printing and differentiating see single operations only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple, TypeAlias

from penstock.ir.program import Body, Branch, Constant, Loop, Node, RowLoop, Source, Value
from penstock.passes.row_calls import Fill, Reduction, RowCall, row_call
from penstock.passes.row_operations import ROW_OPS, RowOp
from penstock.passes.row_types import Item, Number, count_elements, dtype_of, shape_of


class Variable(NamedTuple):
    """A scalar by its name."""

    name: str
    dtype: str


class Literal(NamedTuple):
    """A number of the program."""

    value: Number
    dtype: str


Atom: TypeAlias = Variable | Literal


@dataclass(frozen=True, slots=True)
class Assign:
    """target = op(operands), computed in the dtype `computes`."""

    target: Variable
    op: RowOp
    operands: tuple[Atom, ...]
    computes: str
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class Choose:
    """One of two arms runs, the second where the condition holds; targets get what it gives."""

    condition: Atom
    arms: tuple[Statements, Statements]
    targets: tuple[Variable, ...]
    results: tuple[tuple[Atom, ...], tuple[Atom, ...]]


@dataclass(frozen=True, slots=True)
class Repeat:
    """While the predicate that `test` computes holds, the body runs."""

    number: int
    carried: tuple[Variable, ...]
    initial: tuple[Atom, ...]
    test: Statements
    predicate: Atom
    body: Statements
    #: What the carried variables become after an iteration.
    following: tuple[Atom, ...]
    maximum: int | None


Statement: TypeAlias = Assign | Choose | Repeat
Statements: TypeAlias = tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class ScalarLoop:
    """A closed loop on scalars."""

    #: For each argument its elements.
    inputs: tuple[tuple[Variable, ...], ...]
    repeat: Repeat
    #: For each output its elements: variables that the loop carries.
    outputs: tuple[tuple[Variable, ...], ...]


def take_apart(loop: RowLoop, arguments: Sequence[int], default_dtype: str) -> ScalarLoop:
    """The scalar operations of a closed loop; `arguments` says which argument each input is."""
    taking = _Taking(default_dtype)
    known: dict[int, tuple[Variable, ...]] = {}
    for value, argument in zip(loop.body.inputs, arguments, strict=True):
        if argument not in known:
            known[argument] = taking.define(value)
        taking.elements[value] = known[argument]
    inputs = tuple(known[argument] for argument in range(len(known)))
    *_, repeat = taking.statements(loop.body.nodes)
    assert isinstance(repeat, Repeat), "a closed loop ends with the loop"
    outputs = [taking.elements[value] for value in loop.body.outputs]
    made = tuple(tuple(x for x in atoms if isinstance(x, Variable)) for atoms in outputs)
    return ScalarLoop(inputs, repeat, made)


@dataclass(slots=True)
class _Taking:
    """The elements of the values met so far."""

    default_dtype: str
    elements: dict[Value, tuple[Atom, ...]] = field(default_factory=dict)
    #: Statements of the bodies that are being taken apart, innermost last.
    stack: list[list[Statement]] = field(default_factory=list)
    count: int = 0
    loops: int = 0

    def new(self, dtype: str) -> Variable:
        """A fresh variable."""
        self.count += 1
        return Variable(f"v{self.count}", dtype)

    def define(self, value: Value) -> tuple[Variable, ...]:
        """Variables for the elements of a value."""
        made = tuple(self.new(dtype_of(value)) for _ in range(count_elements(value)))
        self.elements[value] = made
        return made

    def statements(self, nodes: Sequence[Node]) -> Statements:
        """What the nodes do, in order."""
        self.stack.append([])
        for node in nodes:
            self._take(node)
        return tuple(self.stack.pop())

    def _take(self, node: Node) -> None:
        match node.operation:
            case Constant(value=value):
                output = node.outputs[0]
                self.elements[output] = (Literal(value, dtype_of(output)),)
            case Branch(bodies=(first, second)):
                self._take_branch(node, first, second)
            case Loop():
                self._take_loop(node, node.operation)
            case _:
                self._take_call(node)

    def _atoms(self, values: Sequence[Value]) -> tuple[Atom, ...]:
        return tuple(atom for value in values for atom in self.elements[value])

    def _take_branch(self, node: Node, first: Body, second: Body) -> None:
        arms, results = [], []
        for body in (first, second):
            arms.append(self.statements(body.nodes))
            results.append(self._atoms(body.outputs))
        targets = tuple(x for value in node.outputs for x in self.define(value))
        (condition,) = self.elements[node.inputs[0]]
        made = Choose(condition, (arms[0], arms[1]), targets, (results[0], results[1]))
        self.stack[-1].append(made)

    def _take_loop(self, node: Node, loop: Loop) -> None:
        initial = self._atoms(node.inputs)
        carried = tuple(x for value in node.outputs for x in self.define(value))
        for inputs in (loop.condition.inputs, loop.body.inputs):
            for value, output in zip(inputs, node.outputs, strict=True):
                self.elements[value] = self.elements[output]
        self.loops += 1
        number = self.loops
        test = self.statements(loop.condition.nodes)
        (predicate,) = self._atoms(loop.condition.outputs)
        body = self.statements(loop.body.nodes)
        following = self._atoms(loop.body.outputs)
        maximum = loop.maximum_iterations
        made = Repeat(number, carried, initial, test, predicate, body, following, maximum)
        self.stack[-1].append(made)

    # ---- calls -----------------------------------------------------------------------------------

    def _take_call(self, node: Node) -> None:
        call, output = row_call(node, self.default_dtype), node.outputs[0]
        match call:
            case Fill(value=value):
                filled = Literal(value, dtype_of(output))
                self.elements[output] = (filled,) * count_elements(output)
            case Reduction():
                self.elements[output] = (self._reduce(call, node.source),)
            case RowCall():
                self.elements[output] = tuple(
                    self._operate(call, position, output, node.source)
                    for position in product(*map(range, shape_of(output)))
                )
            case None:
                raise AssertionError(f"{node.operation} is not row-wise")

    def _operate(
        self, call: RowCall, position: tuple[int, ...], output: Value, source: Source | None
    ) -> Variable:
        picked = zip(call.operands, call.dtypes, strict=True)
        operands = [self._cast(self._element(item, position), dtype) for item, dtype in picked]
        return self._assign(call.op, operands, call.computes, dtype_of(output), source)

    def _element(self, item: Item, position: tuple[int, ...]) -> Atom | Number:
        """The element of an operand that meets an element of the result."""
        if not isinstance(item, Value):
            return item
        place = 0
        shape = shape_of(item)
        for size, index in zip(shape, position[len(position) - len(shape) :], strict=True):
            place = place * size + (index if size > 1 else 0)
        return self.elements[item][place]

    def _cast(self, item: Atom | Number, dtype: str) -> Atom:
        if not isinstance(item, Variable | Literal):
            return Literal(item, dtype)
        if item.dtype == dtype:
            return item
        if isinstance(item, Literal):
            return Literal(bool(item.value) if dtype == "bool" else item.value, dtype)
        return self._assign(ROW_OPS[f"to_{dtype}"], [item], dtype, dtype, None)

    def _assign(
        self,
        op: RowOp,
        operands: Sequence[Atom],
        computes: str,
        dtype: str,
        source: Source | None,
    ) -> Variable:
        target = self.new(dtype)
        self.stack[-1].append(Assign(target, op, tuple(operands), computes, source))
        return target

    def _reduce(self, call: Reduction, source: Source | None) -> Atom:
        dtype = call.dtype
        atoms = [self._cast(atom, dtype) for atom in self.elements[call.operand]]
        is_choice = call.op.name in ("maximum", "minimum")
        op = replace(call.op, derivatives=(None, None)) if is_choice else call.op
        first, *others = atoms
        for atom in others:
            first = self._assign(op, [first, atom], dtype, dtype, source)
        if is_choice and others:
            return self._assign(_shared_among(len(atoms)), [first, *atoms], dtype, dtype, source)
        if call.is_mean:
            count = Literal(len(atoms), dtype)
            return self._assign(ROW_OPS["true_divide"], [first, count], dtype, dtype, source)
        return first


def _shared_among(count: int) -> RowOp:
    """The extreme of some elements, whose gradient is shared evenly by all that equal it, or by all
    that are NaN as it is.
    """
    places = [f"{{{place}}}" for place in range(1, count + 1)]
    equal = [f"({place} == {{0}} or {place} != {place} and {{0}} != {{0}})" for place in places]
    sharing = " + ".join(f"T({same})" for same in equal)
    rules = [f"{{g}} / ({sharing}) if {same} else T(0)" for same in equal]
    return replace(ROW_OPS["clone"], name="extreme", derivatives=(None, *rules))
