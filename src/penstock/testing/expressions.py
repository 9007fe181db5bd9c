"""Straight-line expressions of random programs: variables, constants and operations of six kinds.

An operation is a name in `RULES`: the kinds it takes and gives, and its Python text. Every rule
keeps its result in bounds, whole numbers within 6 and floats within 2 of zero, so that loops stay
short and nothing overflows. Float comparisons say how far they are from their threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TypeAlias

import torch
from torch import Tensor


class Kind(Enum):
    """The type of a value; the text begins the names of its variables."""

    INT = "i"
    BOOL = "b"
    FLOAT = "x"
    VECTOR = "v"
    INTS = "ns"
    VECTORS = "vs"


INT, BOOL, FLOAT, VECTOR, INTS, VECTORS = Kind

#: The kinds that loops carry and branches return.
SINGLE = (INT, BOOL, FLOAT, VECTOR)

#: What a sequence of each kind is taken apart into.
ELEMENT_OF = {INTS: INT, VECTORS: VECTOR}
SEQUENCE_OF = {element: sequence for sequence, element in ELEMENT_OF.items()}

#: How many numbers a vector has.
WIDTH = 3

#: The matrix that the texts of rules call `weight`.
WEIGHT = torch.tensor(
    [[0.5, -1.0, 0.25], [0.75, 0.5, -0.5], [-0.25, 1.0, 0.125]], dtype=torch.float64
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One operation; `{0}`, `{1}`, ... in its text stand for the arguments."""

    arguments: tuple[Kind, ...]
    result: Kind
    text: str
    #: Whether Python numbers may stand for some of the arguments, as in `x + 1`.
    takes_numbers: bool = False
    #: The text of a value that must be away from zero for the result to be certain.
    margin: str | None = None
    #: Whether it keeps its result in bounds whatever the arguments are.
    is_bounded: bool = True
    #: Whether it asks for the contents of a tensor, even where only its type is wanted.
    needs_contents: bool = False


RULES = {
    "add_ints": Rule((INT, INT), INT, "({0} + {1}) % 7", takes_numbers=True),
    "subtract_ints": Rule((INT, INT), INT, "({0} - {1}) // 2", takes_numbers=True),
    "multiply_ints": Rule((INT, INT), INT, "{0} * {1} % 5", takes_numbers=True),
    "negative_remainder": Rule((INT,), INT, "{0} % -4", takes_numbers=True),
    "larger_int": Rule((INT, INT), INT, "torch.maximum({0}, {1})"),
    "choose_int": Rule((BOOL, INT, INT), INT, "torch.where({0}, {1}, {2})"),
    "truth_as_int": Rule((BOOL,), INT, "{0}.to(torch.int64)"),
    "count_ints": Rule((INTS, INT), INT, "({0}.shape[0] + {1}) % 7"),
    "count_vectors": Rule((VECTORS, INT), INT, "({0}.shape[0] - {1}) % 5"),
    "sum_ints": Rule((INTS,), INT, "{0}.sum() % 7"),
    "one_less": Rule((INT,), INT, "{0} - 1", takes_numbers=True, is_bounded=False),
    "two_less": Rule((INT,), INT, "{0} - 2", takes_numbers=True, is_bounded=False),
    "depth": Rule((INT,), INT, "{0} % 4", takes_numbers=True),
    "is_positive": Rule((INT,), BOOL, "{0} > 0", takes_numbers=True),
    "is_done": Rule((INT,), BOOL, "{0} <= 0", takes_numbers=True),
    "is_even": Rule((INT,), BOOL, "{0} % 2 == 0", takes_numbers=True),
    "less": Rule((INT, INT), BOOL, "{0} < {1}", takes_numbers=True),
    "equal": Rule((INT, INT), BOOL, "{0} == {1}", takes_numbers=True),
    "below": Rule((FLOAT, FLOAT), BOOL, "{0} < {1} + 0.3", True, margin="{1} + 0.3 - {0}"),
    "above": Rule((FLOAT,), BOOL, "{0} > -0.1", True, margin="{0} + 0.1"),
    "both": Rule((BOOL, BOOL), BOOL, "{0} & {1}", takes_numbers=True),
    "either": Rule((BOOL, BOOL), BOOL, "{0} | {1}", takes_numbers=True),
    "negate": Rule((BOOL,), BOOL, "~{0}"),
    "add_floats": Rule((FLOAT, FLOAT), FLOAT, "({0} + {1}) * 0.5", takes_numbers=True),
    "subtract_floats": Rule((FLOAT, FLOAT), FLOAT, "({0} - {1}) * 0.5", takes_numbers=True),
    "multiply_floats": Rule((FLOAT, FLOAT), FLOAT, "{0} * {1} * 0.5", takes_numbers=True),
    "tanh": Rule((FLOAT,), FLOAT, "torch.tanh({0})"),
    "sine": Rule((FLOAT,), FLOAT, "torch.sin({0} * 2)"),
    "weigh": Rule((INT, FLOAT), FLOAT, "{0} * {1} * 0.125"),
    "choose_float": Rule((BOOL, FLOAT, FLOAT), FLOAT, "torch.where({0}, {1}, {2})"),
    "sum_vector": Rule((VECTOR,), FLOAT, "{0}.sum() * 0.25"),
    "dot": Rule((VECTOR, VECTOR), FLOAT, "torch.dot({0}, {1}) * 0.125"),
    "pick": Rule((VECTOR, INT), FLOAT, "{0}[{1} % 3]", needs_contents=True),
    "add_vectors": Rule((VECTOR, VECTOR), VECTOR, "({0} + {1}) * 0.5"),
    "multiply_vectors": Rule((VECTOR, VECTOR), VECTOR, "{0} * {1} * 0.5"),
    "scale": Rule((VECTOR, FLOAT), VECTOR, "{0} * {1} * 0.5"),
    "linear": Rule((VECTOR,), VECTOR, "torch.tanh({0} @ weight)"),
    "softmax": Rule((VECTOR,), VECTOR, "torch.softmax({0}, 0)"),
    "embed": Rule((INT,), VECTOR, "torch.nn.functional.embedding({0} % 3, weight)"),
    "stack": Rule((FLOAT, FLOAT, FLOAT), VECTOR, "torch.stack([{0}, {1}, {2}])"),
    "choose_vector": Rule((BOOL, VECTOR, VECTOR), VECTOR, "torch.where({0}, {1}, {2})"),
    "sum_vectors": Rule((VECTORS,), VECTOR, "{0}.sum(0) * 0.125"),
    "shift_all": Rule((INTS, INT), INTS, "({0} * 3 + {1}) % 7"),
    "linear_all": Rule((VECTORS,), VECTORS, "torch.tanh({0} @ weight)"),
    "scale_all": Rule((VECTORS, VECTOR), VECTORS, "{0} * {1} * 0.5"),
    "embed_all": Rule((INTS,), VECTORS, "torch.nn.functional.embedding({0} % 3, weight)"),
}


@dataclass(frozen=True, slots=True)
class Variable:
    """A value by its name, which no other variable of the program has."""

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Constant:
    """A number in the program; of a vector, every element."""

    value: bool | int | float
    kind: Kind

    def tensor(self) -> Tensor:
        """The constant as a tensor of its kind."""
        if self.kind in (INT, BOOL):
            return torch.tensor(self.value)
        shape = (WIDTH,) if self.kind is VECTOR else ()
        return torch.full(shape, self.value, dtype=torch.float64)


@dataclass(frozen=True, slots=True)
class Operation:
    """A rule applied to arguments of its kinds."""

    rule: str
    arguments: tuple[Expression, ...]

    @property
    def kind(self) -> Kind:
        """The kind of the result."""
        return RULES[self.rule].result


Expression: TypeAlias = Variable | Constant | Operation


def operations(expression: Expression) -> Iterator[Operation]:
    """Every operation in an expression, outer ones first."""
    if isinstance(expression, Operation):
        yield expression
        for argument in expression.arguments:
            yield from operations(argument)


@cache
def compiled(text: str) -> Callable[..., Tensor]:
    """The text of a rule as a function of its arguments."""
    names = [name for name in "abc" if f"{{{'abc'.index(name)}}}" in text]
    function: Callable[..., Tensor] = eval(
        f"lambda {', '.join(names)}: {text.format(*names)}", {"torch": torch, "weight": WEIGHT}
    )
    return function
