"""The record of one host operation, and the numpy expression emitted for a call of it.

An expression is as bare as the dtypes allow: `i + j` for two int64 operands, casts and checks only
where needed. Generated code runs with the names of `NAMESPACE` and the constants of each emitted
expression. Fusing expressions into control blocks is the business of whoever emits them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from penstock.plan.host_kernels import NAMESPACE
from penstock.plan.host_rules import CastRule
from penstock.plan.host_types import (
    Array,
    Literal,
    Scalars,
    can_cast,
    cast_source,
    constant,
    constant_name,
    enclose,
    literal_dtype,
    overflows,
)


class Resolution(NamedTuple):
    """How one operation computes on operands of given dtypes."""

    operand_dtypes: tuple[str, ...]
    result_dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOp:
    """One host operation with all its rules."""

    name: str
    #: torch's parameter names, in the order of the operands.
    parameters: tuple[str, ...]
    #: Casts all operands but a leading condition to one dtype, the dtype of the computation.
    casts: CastRule
    #: The numpy expression for each dtype of the computation; a dtype left out is not on the host.
    expressions: Mapping[str, str]
    #: The expression where the last operand is a nonzero literal; None: no shorter one.
    expression_by_nonzero: str | None
    #: Whether torch refuses a finite literal that overflows in the computation's dtype.
    refuses_overflow: bool
    #: The result dtype; None: that of the computation.
    returns: str | None
    #: Names of this operation both in `torch` and in `torch.Tensor`.
    names: tuple[str, ...]
    #: Further full names.
    spellings: tuple[str, ...]
    #: Full names that take the operands in reverse.
    reflected: tuple[str, ...]

    def resolve(
        self, dtypes: Sequence[str], is_literal: Sequence[bool], default_dtype: str
    ) -> Resolution | None:
        """The casts and the result dtype for these operands; None: the call belongs in a block."""
        if len(dtypes) != len(self.parameters):
            return None
        targets = self.casts(Scalars(tuple(dtypes), tuple(is_literal), default_dtype))
        if targets is None or targets[-1] not in self.expressions:
            return None
        if not all(map(can_cast, dtypes, targets)):
            return None
        return Resolution(targets, self.returns or targets[-1])

    def result_dtype(
        self, dtypes: Sequence[str], is_literal: Sequence[bool], default_dtype: str
    ) -> str | None:
        """torch's result dtype; None: the call belongs in a block."""
        resolution = self.resolve(dtypes, is_literal, default_dtype)
        return resolution.result_dtype if resolution else None

    def source(self, dtype: str, *operands: str) -> str:
        """The numpy expression on operand expressions already cast; `dtype` is that of the last."""
        return self.expressions[dtype].format(*map(enclose, operands))

    def evaluate(self, *arrays: Array) -> Array:
        """The result on operands already cast as `resolve` says; to be called inside `quiet()`."""
        expression = self.expressions[arrays[-1].dtype.name]
        return _compile(expression, self.parameters)(*arrays)


@lru_cache(maxsize=1024)
def _compile(expression: str, parameters: tuple[str, ...]) -> Callable[..., Array]:
    source = f"lambda {', '.join(parameters)}: {expression.format(*parameters)}"
    function: Callable[..., Array] = eval(source, dict(NAMESPACE))
    return function


class Operand(NamedTuple):
    """A host array in generated code: its expression and its dtype."""

    source: str
    dtype: str


class Emitted(NamedTuple):
    """The expression of a result, and the constants it names besides those of `NAMESPACE`."""

    source: str
    dtype: str
    constants: Mapping[str, Array]


def emit(op: HostOp, operands: Sequence[Operand | Literal], default_dtype: str) -> Emitted | None:
    """One numpy expression for a call of `op`, casts included; None: it belongs in a block."""
    is_literal = [not isinstance(operand, Operand) for operand in operands]
    dtypes = [_dtype_of(operand) for operand in operands]
    resolution = op.resolve(dtypes, is_literal, default_dtype)
    if resolution is None or _is_refused(op, operands, resolution.operand_dtypes):
        return None
    sources, constants = _cast_operands(operands, resolution.operand_dtypes)
    if op.expression_by_nonzero and is_literal[-1] and operands[-1]:
        source = op.expression_by_nonzero.format(*map(enclose, sources))
    else:
        source = op.source(resolution.operand_dtypes[-1], *sources)
    return Emitted(source, resolution.result_dtype, constants)


def _dtype_of(operand: Operand | Literal) -> str:
    if isinstance(operand, Operand):
        return operand.dtype
    return literal_dtype(operand) or "unknown"


def _is_refused(op: HostOp, operands: Sequence[Operand | Literal], targets: Sequence[str]) -> bool:
    return op.refuses_overflow and any(
        not isinstance(operand, Operand) and overflows(operand, target)
        for operand, target in zip(operands, targets, strict=True)
    )


def _cast_operands(
    operands: Sequence[Operand | Literal], targets: Sequence[str]
) -> tuple[list[str], dict[str, Array]]:
    sources: list[str] = []
    constants: dict[str, Array] = {}
    for operand, target in zip(operands, targets, strict=True):
        if isinstance(operand, Operand):
            sources.append(cast_source(*operand, target))
        else:
            sources.append(constant_name(operand, target))
            constants[sources[-1]] = constant(operand, target)
    return sources, constants
