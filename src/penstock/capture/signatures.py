"""Functions of a program by the signature of their arguments, and symbols across a call.

Each signature has a record with its own symbols: those of a caller are mapped to them by the order
in which they occur, and back for the results. What is not passed (static values, captured tensors)
is part of the signature.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from penstock.calls.structure import Structure
from penstock.capture.active import state
from penstock.capture.leaf_types import LeafType, StaticLeaf, leaf_type
from penstock.capture.location import user_line
from penstock.capture.static import static_key
from penstock.capture.traced_array import TracedTensorArray
from penstock.capture.traced_tensor import TracedTensor
from penstock.errors import ArgumentError, PenstockWarning, RecursionLimitError, report
from penstock.ir.program import Source
from penstock.ir.types import ArrayType, Dimension, TensorType, Type

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer

#: More signatures of one function than this are worth a warning, and than that an error.
MANY_SIGNATURES, TOO_MANY_SIGNATURES = 8, 24


_PLAIN_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Callee:
    """A `ps.function` as calls see it."""

    function: Callable[..., Any]
    name: str
    #: Equal for calls of the same function on the same object.
    identity: Hashable
    signature: inspect.Signature
    #: Whether Python control flow in it is converted.
    autograph: bool = True

    #: How many parameters there are, where each takes one argument by its position; else -1.
    plain_count: int = field(init=False)

    def __post_init__(self) -> None:
        parameters = self.signature.parameters.values()
        is_plain = all(parameter.kind in _PLAIN_KINDS for parameter in parameters)
        object.__setattr__(self, "plain_count", len(parameters) if is_plain else -1)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The arguments in their normal form, defaults included."""
        if not kwargs and len(args) == self.plain_count:
            return args, {}
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise self._misfit(error) from None
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def _misfit(self, error: TypeError) -> ArgumentError:
        return ArgumentError(
            report(
                f"{self.name}: these arguments do not fit its parameters.",
                where=user_line(),
                facts=[("parameters", str(self.signature)), ("problem", str(error))],
                todo="Pass an argument for each parameter; map takes a column for each, or by name"
                " a value for all instances.",
            )
        )

    @property
    def source(self) -> Source | None:
        """Where the function is defined."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        if code is None:
            return None
        file = code.co_filename.removeprefix(os.getcwd() + os.sep)
        return Source(file, code.co_firstlineno, code.co_name)


@dataclass(slots=True, eq=False)
class Results:
    """What a function returns: its structure and the types of its leaves."""

    structure: Structure
    leaves: list[LeafType | StaticLeaf]

    @property
    def types(self) -> list[Type]:
        """The types of the traced leaves."""
        return [leaf.type for leaf in self.leaves if isinstance(leaf, LeafType)]


@dataclass(slots=True, eq=False)
class Record:
    """One function for one signature."""

    name: str
    parameters: list[LeafType]
    #: None until something is known of them.
    results: Results | None = None
    #: Whether the function is traced and its results are certain.
    is_final: bool = False
    #: The unfinished functions that `results` rely on.
    missing: set[Record] = field(default_factory=set)


class Signatures:
    """All functions of a program, by signature."""

    def __init__(self) -> None:
        self.records: dict[Hashable, Record] = {}
        #: Functions whose unknown results made a branch be left out of the trace at work.
        self.missing: set[Record] = set()
        self._counts: dict[Hashable, int] = {}

    def new_name(self, callee: Callee, types: Sequence[LeafType]) -> str:
        """A name for one more signature of `callee`."""
        count = self._counts.get(callee.identity, 0)
        self._counts[callee.identity] = count + 1
        if count == MANY_SIGNATURES:
            shown = ", ".join(map(str, types))
            text = f"{callee.name}: more than {MANY_SIGNATURES} signatures in one program."
            warnings.warn(
                report(text, where=user_line(), facts=[("newest", f"({shown})")]),
                PenstockWarning,
                2,
            )
        if count > TOO_MANY_SIGNATURES:
            raise _endless_signatures(callee, types)
        taken = {record.name for record in self.records.values()}
        names = [callee.name, *(f"{callee.name}_{number}" for number in range(1, len(taken) + 2))]
        return next(name for name in names if name not in taken)


def signature_key(callee: Callee, structure: Structure, leaves: Sequence[Any]) -> Hashable:
    """Equal for calls that one trace of the function serves."""
    symbols: dict[str, str] = {}
    parts: list[Hashable] = []
    for leaf in leaves:
        known = leaf_type(leaf)
        if isinstance(leaf, TracedTensor | TracedTensorArray) and isinstance(known, LeafType):
            parts.append((_renamed(known.type, symbols, "s"), known.is_control))
        else:
            parts.append(static_key(leaf))
    return callee.identity, str(structure), tuple(parts), state.device


def new_record(tracer: Tracer, callee: Callee, passed: Sequence[Any]) -> Record:
    """A record whose parameters have symbols of their own."""
    symbols: dict[str, Dimension] = {}
    parameters = []
    for leaf in passed:
        known = leaf_type(leaf)
        assert isinstance(known, LeafType)
        for size in _dimensions(known.type):
            if isinstance(size, str) and size not in symbols:
                symbols[size] = tracer.worlds.fresh_symbol()
        parameters.append(LeafType(_with_symbols(known.type, symbols), known.is_control))
    return Record(tracer.signatures.new_name(callee, parameters), parameters)


def results_in_caller(tracer: Tracer, record: Record, passed: Sequence[Any]) -> Results:
    """The results with the symbols of the caller."""
    assert record.results is not None
    symbols: dict[str, Dimension] = {}
    for parameter, argument in zip(record.parameters, passed, strict=True):
        known = leaf_type(argument)
        assert isinstance(known, LeafType)
        symbols |= {
            inner: outer
            for inner, outer in zip(
                _dimensions(parameter.type), _dimensions(known.type), strict=True
            )
            if isinstance(inner, str)
        }
    leaves: list[LeafType | StaticLeaf] = []
    for leaf in record.results.leaves:
        if isinstance(leaf, LeafType):
            for size in _dimensions(leaf.type):
                if isinstance(size, str) and size not in symbols:
                    symbols[size] = tracer.worlds.fresh_symbol()
            leaf = LeafType(_with_symbols(leaf.type, symbols), leaf.is_control)
        leaves.append(leaf)
    return Results(record.results.structure, leaves)


def _dimensions(type_: Type) -> tuple[Dimension, ...]:
    tensor = type_.element if isinstance(type_, ArrayType) else type_
    return () if tensor is None else tensor.shape


def _with_symbols(type_: Type, symbols: dict[str, Dimension]) -> Type:
    if isinstance(type_, ArrayType):
        element = type_.element and _with_symbols(type_.element, symbols)
        return ArrayType(element) if isinstance(element, TensorType) else type_
    shape = tuple(symbols[size] if isinstance(size, str) else size for size in type_.shape)
    return replace(type_, shape=shape)


def _renamed(type_: Type, symbols: dict[str, str], prefix: str) -> Type:
    """The type with symbols numbered in the order met."""
    for size in _dimensions(type_):
        if isinstance(size, str):
            symbols.setdefault(size, f"{prefix}{len(symbols)}")
    return _with_symbols(type_, dict(symbols))


def _endless_signatures(callee: Callee, types: Sequence[LeafType]) -> RecursionLimitError:
    return RecursionLimitError(
        report(
            f"{callee.name}: the argument types change at every recursive call.",
            where=user_line(),
            facts=[
                ("newest call", f"({', '.join(map(str, types))})"),
                ("signatures", str(TOO_MANY_SIGNATURES)),
            ],
            todo="Keep shapes and dtypes the same from call to call, and pass indices instead.",
        )
    )
