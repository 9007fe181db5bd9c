"""Calls of `ps.function`s in a trace: each function is traced once per signature of its arguments.

A call of a function that is still being traced needs its result types. They are found by a first
trace in which such calls give up the branch they are in; the other branches give the types. Then
the function is traced again with those types taken for granted, and checked at the end.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from penstock.calls.structure import Structure, flatten, unflatten
from penstock.capture.branches import is_traced
from penstock.capture.converted.callees import converted
from penstock.capture.leaf_types import LeafType, StaticLeaf, join, leaf_type, wrap_leaves
from penstock.capture.leaves import as_values
from penstock.capture.recursion import UnresolvedRecursion
from penstock.capture.signatures import (
    Callee,
    Record,
    Results,
    Signatures,
    new_record,
    results_in_caller,
    signature_key,
)
from penstock.capture.source import raising_source
from penstock.capture.static import is_static, unwrap_static
from penstock.capture.traced_array import TracedTensorArray
from penstock.capture.traced_tensor import TracedTensor
from penstock.errors import PenstockError, RecursionLimitError, StructureError, report
from penstock.ir.program import Body, Call, Function, Source
from penstock.ir.types import ArrayType, TensorType

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


@dataclass(slots=True)
class _Arguments:
    """The arguments of one call, taken apart."""

    structure: Structure
    leaves: list[Any]
    #: Numbers of the leaves that are passed; the others are part of the signature.
    passed: list[int]


def trace_call(
    tracer: Tracer, callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Record a call of `callee`."""
    arguments = _take_apart(tracer, callee, args, kwargs)
    passed = [arguments.leaves[number] for number in arguments.passed]
    key = signature_key(callee, arguments.structure, arguments.leaves)
    record = tracer.signatures.records.get(key)
    if record is None:
        record = new_record(tracer, callee, passed)
        trace_function(tracer, record, key, callee, arguments.structure, arguments.leaves)
    if record.results is None:
        raise UnresolvedRecursion(record)
    tracer.signatures.missing |= record.missing
    results = results_in_caller(tracer, record, passed)
    outputs = tracer.emit(Call(record.name), passed, results.types)
    return unflatten(results.structure, wrap_leaves(tracer, outputs, results.leaves))


def trace_function(
    tracer: Tracer,
    record: Record,
    key: Hashable,
    callee: Callee,
    structure: Structure,
    leaves: Sequence[Any],
) -> None:
    """Fill in `record` by tracing the function, as often as its recursion needs."""
    signatures = tracer.signatures
    signatures.records[key] = record
    tracer.owners.add_function(callee.function)
    try:
        while not record.is_final:
            body, found, missing = _attempt(tracer, record, callee, structure, leaves)
            if missing - {record}:
                record.results, record.missing = found, missing - {record}
                return
            is_settled = _settle(tracer, callee, record, found, bool(missing))
            if is_settled:
                tracer.functions[record.name] = Function(record.name, body, callee.source)
                record.is_final, record.missing = True, set()
            _forget_tentative(signatures, record)
    except BaseException:
        signatures.records.pop(key, None)
        raise


def _forget_tentative(signatures: Signatures, finished: Record) -> None:
    """Drop what was only found out while `finished` was unknown."""
    for key, record in list(signatures.records.items()):
        if finished in record.missing:
            del signatures.records[key]


def _attempt(
    tracer: Tracer, record: Record, callee: Callee, structure: Structure, leaves: Sequence[Any]
) -> tuple[Body, Results, set[Record]]:
    outer = tracer.signatures.missing
    tracer.signatures.missing = set()
    try:
        body, results = _trace_body(tracer, record, callee, structure, leaves)
        missing = tracer.signatures.missing
    except UnresolvedRecursion as error:
        if error.record is record:
            raise _no_base_case(callee, raising_source(error)) from None
        raise
    finally:
        tracer.signatures.missing = outer
    return body, results, missing


def _trace_body(
    tracer: Tracer, record: Record, callee: Callee, structure: Structure, leaves: Sequence[Any]
) -> tuple[Body, Results]:
    with tracer.function_scope(record.name) as scope:
        parameters = iter(record.parameters)
        inner = [
            _parameter(tracer, next(parameters), leaf)
            if isinstance(leaf, TracedTensor | TracedTensorArray)
            else unwrap_static(leaf)
            for leaf in leaves
        ]
        args, kwargs = unflatten(structure, inner)
        returned = _call_user(tracer, callee, args, kwargs)
        returned = as_values(returned, f"{callee.name}: what the function returns", "result")
        outputs, returned_structure = flatten(returned)
        outputs = [tracer.leaf(leaf) for leaf in outputs]
        body = scope.body([tracer.read(leaf) for leaf in outputs if is_traced(leaf)])
        return body, Results(returned_structure, [leaf_type(leaf) for leaf in outputs])


def _parameter(tracer: Tracer, parameter: LeafType, argument: Any) -> Any:
    if isinstance(parameter.type, ArrayType):
        return tracer.body_input(parameter.type)
    origins = tuple(
        found if isinstance(size, int) else frozenset()
        for size, found in zip(parameter.type.shape, argument.traced.origins, strict=True)
    )
    return tracer.body_input(parameter.type, is_control=parameter.is_control, origins=origins)


def _call_user(
    tracer: Tracer, callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    try:
        if not callee.autograph:
            return callee.function(*args, **kwargs)
        with tracer.recursions.entry(callee):
            return converted(callee.function)(*args, **kwargs)
    except Exception as caught:
        error = tracer.unswallowed(caught)
        if not isinstance(error, PenstockError):
            source = raising_source(caught) or callee.source
            error.add_note(f"while tracing {callee.name} at {source}")
        if error is caught:
            raise
        raise error from None


def _settle(tracer: Tracer, callee: Callee, record: Record, found: Results, is_probe: bool) -> bool:
    """Take over what a trace found; whether the function is finished with it."""
    assumed = record.results
    if is_probe or assumed is None:
        record.results = found
        return not is_probe
    joined = [join(tracer, *pair) for pair in zip(assumed.leaves, found.leaves, strict=False)]
    if assumed.structure != found.structure or None in joined:
        raise _unstable_results(callee, assumed, found)
    leaves = [_kept(old, new) for old, new in zip(assumed.leaves, joined, strict=True) if new]
    record.results = Results(assumed.structure, leaves)
    return leaves == assumed.leaves


def _kept(old: LeafType | StaticLeaf, new: LeafType | StaticLeaf) -> LeafType | StaticLeaf:
    """`new`, but with the symbols of `old`: those stand for any size already."""
    if not isinstance(old, LeafType) or not isinstance(new, LeafType):
        return new
    if isinstance(old.type, TensorType) and isinstance(new.type, TensorType):
        shape = tuple(
            one if isinstance(one, str) else other
            for one, other in zip(old.type.shape, new.type.shape, strict=True)
        )
        return replace(new, type=replace(new.type, shape=shape))
    return new


def _take_apart(
    tracer: Tracer, callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _Arguments:
    bound = as_values(callee.bind(args, kwargs), f"{callee.name}: an argument", "arguments")
    leaves, structure = flatten(bound)
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, TracedTensor | TracedTensorArray):
            tracer.read(leaf)
        elif not isinstance(leaf, torch.Tensor) and not is_static(leaf):
            leaves[number] = tracer.tensor(leaf)
    passed = [n for n, leaf in enumerate(leaves) if is_traced(leaf)]
    return _Arguments(structure, leaves, passed)


def _no_base_case(callee: Callee, source: Source | None) -> RecursionLimitError:
    return RecursionLimitError(
        report(
            f"{callee.name}: recursion without a base case.",
            where=str(source or callee.source),
            facts=[
                ("every path", f"calls {callee.name} again"),
                ("needed", "a path that does not"),
            ],
            todo="Return without the recursive call in one branch of an `if`, or of ps.cond.",
        )
    )


def _unstable_results(callee: Callee, assumed: Results, found: Results) -> StructureError:
    return StructureError(
        report(
            f"{callee.name}: a recursive call returns other types than its base case.",
            where=str(callee.source),
            facts=[
                ("base case", f"({', '.join(map(str, assumed.leaves))})"),
                ("recursion", f"({', '.join(map(str, found.leaves))})"),
            ],
            todo="Make every path return the same structure, dtypes and shapes.",
        )
    )
