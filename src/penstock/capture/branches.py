"""`cond` and `switch` in a trace: every branch becomes a body, and their results are joined.

Branches read outer values directly. Their results must agree in structure, dtype, shape and device;
dynamic dimensions that differ become a fresh one, and a number on the host follows what another
branch gives to its device. A branch that needs the result of an unfinished
recursion is left out while the types of that recursion are being found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.calls.structure import (
    Structure,
    StructureMismatchError,
    flatten,
    flatten_like,
    leaf_paths,
    unflatten,
)
from penstock.capture.following import join_following, placed
from penstock.capture.leaf_types import LeafType, StaticLeaf, leaf_type, wrap_leaves
from penstock.capture.leaves import as_values
from penstock.capture.location import user_line
from penstock.capture.predicates import is_decided, predicate
from penstock.capture.recursion import UnresolvedRecursion
from penstock.capture.refusals import describe
from penstock.capture.source import user_source
from penstock.errors import BranchTypeError, report
from penstock.faults import branch_out_of_range
from penstock.ir.program import AsSequence, Body, Branch, Node
from penstock.ir.types import TensorType, Type

if TYPE_CHECKING:
    from penstock.capture.scopes import Scope
    from penstock.capture.tracer import Tracer


@dataclass(slots=True)
class _Outcome:
    """What one branch returned."""

    name: str
    returned: Any
    leaves: list[Any]
    structure: Structure
    scope: Scope


def trace_cond(
    tracer: Tracer, pred: Any, true_fn: Any, false_fn: Any, operands: Sequence[Any]
) -> Any:
    """`ps.cond`."""
    if is_decided(pred):
        with tracer.scope.decided_branch(int(bool(pred))):
            return _run(true_fn if pred else false_fn, "cond", operands)
    index = predicate(tracer, pred, "cond: pred")
    functions = {"false_fn": false_fn, "true_fn": true_fn}
    return _trace(tracer, "cond", index, functions, operands, is_cond=True)


def trace_switch(
    tracer: Tracer, index: Any, functions: Sequence[Any], operands: Sequence[Any]
) -> Any:
    """`ps.switch`."""
    if is_decided(index):
        number = _checked(index, len(functions))
        with tracer.scope.decided_branch(number):
            return _run(functions[number], "switch", operands)
    chosen = tracer.integer(index, "switch: index")
    named = {f"branch {i}": function for i, function in enumerate(functions)}
    return _trace(tracer, "switch", chosen, named, operands, is_cond=False)


def _checked(index: int, count: int) -> int:
    if 0 <= index < count:
        return index
    raise branch_out_of_range(index, count).at(user_line())


def _run(function: Callable[..., Any], what: str, operands: Sequence[Any]) -> Any:
    operands = as_values(tuple(operands), f"{what}: operands", "operands")
    return as_values(function(*operands), f"{what}: what a branch returns", "result")


def _trace(
    tracer: Tracer,
    what: str,
    index: Any,
    functions: dict[str, Callable[..., Any]],
    operands: Sequence[Any],
    *,
    is_cond: bool,
) -> Any:
    values = as_values(tuple(operands), f"{what}: operands", "operands")
    outcomes = [_trace_body(tracer, what, name, fn, values) for name, fn in functions.items()]
    resolved = [item for item in outcomes if isinstance(item, _Outcome)]
    unresolved = [item for item in outcomes if isinstance(item, UnresolvedRecursion)]
    if not resolved:
        raise unresolved[0]
    for error in unresolved:
        tracer.signatures.missing.add(error.record)
    leaves = _join_all(tracer, what, resolved)
    types = [leaf.type for leaf in leaves if isinstance(leaf, LeafType)]
    bodies = tuple(
        _body(tracer, item, leaves) if isinstance(item, _Outcome) else _NO_BODY for item in outcomes
    )
    outputs = tracer.emit(Branch(bodies, is_cond), (index,), types)
    return unflatten(resolved[0].structure, wrap_leaves(tracer, outputs, leaves))


#: Stands for a branch that was left out; such a trace is thrown away.
_NO_BODY = Body((), (), ())


def _trace_body(
    tracer: Tracer, what: str, name: str, function: Callable[..., Any], operands: tuple[Any, ...]
) -> _Outcome | UnresolvedRecursion:
    with tracer.nested_scope() as scope:
        try:
            returned = function(*operands)
        except UnresolvedRecursion as error:
            return error
        returned = as_values(returned, f"{what}: what {name} returns", "result")
        leaves, structure = flatten(returned)
        leaves = [tracer.leaf(leaf) for leaf in leaves]
        return _Outcome(name, returned, leaves, structure, scope)


def _body(tracer: Tracer, outcome: _Outcome, joined: Sequence[LeafType | StaticLeaf]) -> Body:
    """The body of a branch, whose results are of the types that all branches can give."""
    types = [leaf.type for leaf in joined if isinstance(leaf, LeafType)]
    traced = [leaf for leaf in outcome.leaves if is_traced(leaf)]
    with tracer.reopened(outcome.scope):
        pairs = zip(traced, types, strict=True)
        outputs = [tracer.read(placed(tracer, leaf, type_)) for leaf, type_ in pairs]
    return with_sequences(tracer, outcome.scope.body(outputs), types)


def with_sequences(tracer: Tracer, body: Body, types: Sequence[Type]) -> Body:
    """The body, with tensors of a static length as sequences where its outputs have such types:
    another branch gives one, or a loop has started with one.
    """
    nodes, outputs = list(body.nodes), []
    for value, type_ in zip(body.outputs, types, strict=True):
        is_sequence = isinstance(type_, TensorType) and type_.is_sequence
        if is_sequence and isinstance(value.type, TensorType) and not value.type.is_sequence:
            made = tracer.new_value(replace(value.type, shape=type_.shape))  # type: ignore[union-attr]
            nodes.append(Node(AsSequence(), (value,), (made,), user_source()))
            value = made
        outputs.append(value)
    return Body(body.inputs, tuple(nodes), tuple(outputs))


def is_traced(leaf: Any) -> bool:
    """Whether a leaf is a value of the program."""
    return isinstance(leaf_type(leaf), LeafType)


def _join_all(tracer: Tracer, what: str, outcomes: list[_Outcome]) -> list[LeafType | StaticLeaf]:
    first = outcomes[0]
    joined = [leaf_type(leaf) for leaf in first.leaves]
    for other in outcomes[1:]:
        try:
            flatten_like(first.structure, other.returned)
        except StructureMismatchError:
            raise _clash(
                what, first, other, "", describe(first.returned), describe(other.returned)
            ) from None
        if first.structure != other.structure:
            other = _reordered(first, other)
        for number, leaf in enumerate(other.leaves):
            known, found = joined[number], leaf_type(leaf)
            both = join_following(tracer, known, found)
            if both is None:
                path = leaf_paths(first.returned, "result")[number]
                raise _clash(what, first, other, path, str(known), str(found))
            joined[number] = both
    return joined


def _reordered(first: _Outcome, other: _Outcome) -> _Outcome:
    """The outcome with its leaves in the order of the first (dicts may differ in it)."""
    numbered = unflatten(other.structure, range(len(other.leaves)))
    order = flatten_like(first.structure, numbered)
    other.leaves = [other.leaves[number] for number in order]
    other.structure = first.structure
    return other


def _clash(
    what: str, first: _Outcome, other: _Outcome, path: str, left: str, right: str
) -> BranchTypeError:
    shown = f"{path}   " if path else ""
    wanted = f"{left} for {path}" if path else left
    return BranchTypeError(
        report(
            f"{what}: all branches must return the same types.",
            where=user_line(),
            facts=[(first.name, f"{shown}{left}"), (other.name, f"{shown}{right}")],
            todo=f"Make {other.name} return {wanted}, or change {first.name}.",
        )
    )
