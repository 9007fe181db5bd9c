"""From a torch call to row-wise operations on scalars: which operation it is, on which operands.

Shapes are small and static, so a call on tensors is the same operation for each element, and a
reduction is a chain of operations over all elements. A call that does not bind, promotes to another
dtype than the program says, or gives another shape, is not row-wise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.ir.program import Node, Operand, TorchCall, Value
from penstock.passes.row_operations import ANY, FLOAT, ROW_OPS, RowOp
from penstock.passes.row_types import (
    Item,
    Number,
    broadcast,
    count_elements,
    dtype_of,
    promote,
    shape_of,
)

#: Operations that reduce all elements to one, by the operation of the chain.
REDUCTIONS = {"sum": "add", "mean": "add", "amax": "maximum", "amin": "minimum", "max": "maximum",
              "min": "minimum", "any": "logical_or", "all": "logical_and"}  # fmt: skip

#: Calls that give one number for all elements.
FILLS: Mapping[str, Number] = {"zeros_like": 0, "ones_like": 1}


@dataclass(frozen=True, slots=True)
class RowCall:
    """One operation for every element of the result, its operands cast to `dtypes`."""

    op: RowOp
    operands: tuple[Item, ...]
    #: The dtype in which each operand is taken.
    dtypes: tuple[str, ...]
    #: The dtype of the computation.
    computes: str


@dataclass(frozen=True, slots=True)
class Reduction:
    """All elements of the operand, cast to `dtype`, joined by an operation."""

    op: RowOp
    operand: Value
    dtype: str
    is_mean: bool = False


@dataclass(frozen=True, slots=True)
class Fill:
    """The same number for every element."""

    value: Number


def row_call(node: Node, default_dtype: str) -> RowCall | Reduction | Fill | None:
    """What a torch call does to scalars; None where it is not row-wise."""
    call = node.operation
    if not isinstance(call, TorchCall) or call.sizes or call.autocast or len(node.outputs) != 1:
        return None
    items = _items(node, call)
    if items is None:
        return None
    args, kwargs = items
    name = call.name.rsplit(".", 1)[-1]
    if name in REDUCTIONS and len(args) == 1 and not kwargs:
        return _reduction(name, args[0], node.outputs[0])
    if name in FILLS and len(args) == 1 and not kwargs:
        return Fill(FILLS[name])
    for op, operands in _bindings(call.name, name, args, kwargs):
        found = _typed(op, operands, node.outputs[0], default_dtype)
        if found is not None:
            return found
    return None


def _items(node: Node, call: TorchCall) -> tuple[list[object], dict[str, object]] | None:
    """The arguments of a call, operands by their values; None where one is nested."""

    def resolve(item: object) -> object:
        return node.inputs[item.index] if isinstance(item, Operand) else item

    args, kwargs = list(map(resolve, call.args)), {k: resolve(v) for k, v in call.kwargs}
    is_flat = not any(isinstance(item, tuple | slice) for item in (*args, *kwargs.values()))
    return (args, kwargs) if is_flat else None


# ---- binding -------------------------------------------------------------------------------------


def _spell_all() -> dict[str, list[tuple[RowOp, bool]]]:
    spelled: dict[str, list[tuple[RowOp, bool]]] = {}
    for op in ROW_OPS.values():
        both = [f"{owner}.{name}" for name in op.names for owner in ("torch", "torch.Tensor")]
        for name in (*both, *op.spellings):
            spelled.setdefault(name, []).append((op, False))
        for name in op.reflected:
            spelled.setdefault(name, []).append((op, True))
    return spelled


_SPELLINGS = _spell_all()

#: Exponents that torch computes by other operations.
_POWERS: Mapping[Number, str] = {
    1: "positive",
    2: "square",
    3: "cube",
    0.5: "sqrt",
    -1: "reciprocal",
}

_DTYPES = {f"torch.{dtype}": dtype for dtype in ANY}


def _bindings(
    full_name: str, name: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> list[tuple[RowOp, tuple[object, ...]]]:
    """The operations that a call may be, each with its operands in order."""
    if name in ("pow", "__pow__", "__rpow__"):
        return _bind_power(args if name != "__rpow__" else args[::-1], kwargs)
    if full_name == "penstock.follow":  # values of a loop are on one device
        return [(ROW_OPS["clone"], tuple(args[:1]))]
    if name in ("to", "type"):
        return _bind_cast(args, kwargs)
    if name in ("div", "divide") and "rounding_mode" in kwargs:
        return _bind_division(args, kwargs)
    if name in ("clamp", "clip"):
        return _bind_clamp(args, kwargs)
    if full_name == "torch.Tensor.where" and len(args) == 3 and not kwargs:
        return [(ROW_OPS["where"], (args[1], args[0], args[2]))]
    found = []
    for op, is_reversed in _SPELLINGS.get(full_name, ()):
        operands = _bound(op, args, kwargs)
        if operands is not None:
            found.append((op, operands[::-1] if is_reversed else operands))
    return found


def _bound(
    op: RowOp, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[object, ...] | None:
    named = dict(zip(op.parameters, args, strict=False))
    is_clash = len(args) > len(op.parameters) or not named.keys().isdisjoint(kwargs)
    named |= kwargs
    if is_clash or named.keys() != set(op.parameters):
        return None
    return tuple(named[parameter] for parameter in op.parameters)


def _bind_power(
    args: Sequence[object], kwargs: Mapping[str, object]
) -> list[tuple[RowOp, tuple[object, ...]]]:
    operands = _bound(ROW_OPS["pow"], args, kwargs)
    if operands is None:
        return []
    exponent = operands[1]
    if type(exponent) in (int, float) and exponent in _POWERS:
        return [(ROW_OPS[_POWERS[exponent]], operands[:1])]  # type: ignore[index]
    return [(ROW_OPS["pow"], operands)]


def _bind_cast(
    args: Sequence[object], kwargs: Mapping[str, object]
) -> list[tuple[RowOp, tuple[object, ...]]]:
    targets = (*args[1:], *kwargs.values())
    if len(targets) != 1 or not kwargs.keys() <= {"dtype"} or str(targets[0]) not in _DTYPES:
        return []
    return [(ROW_OPS[f"to_{_DTYPES[str(targets[0])]}"], (args[0],))]


def _bind_division(
    args: Sequence[object], kwargs: Mapping[str, object]
) -> list[tuple[RowOp, tuple[object, ...]]]:
    others = {name: value for name, value in kwargs.items() if name != "rounding_mode"}
    rounding = kwargs["rounding_mode"]
    if rounding not in (None, "floor"):
        return []
    op = ROW_OPS["floor_divide" if rounding else "true_divide"]
    operands = _bound(op, args, others)
    return [] if operands is None else [(op, operands)]


def _bind_clamp(
    args: Sequence[object], kwargs: Mapping[str, object]
) -> list[tuple[RowOp, tuple[object, ...]]]:
    named = {**dict(zip(("input", "min", "max"), args, strict=False)), **kwargs}
    given = {name: value for name, value in named.items() if value is not None}
    for op in (ROW_OPS["clamp"], ROW_OPS["clamp_min"], ROW_OPS["clamp_max"]):
        operands = _bound(op, (), given)
        if operands is not None:
            return [(op, operands)]
    return []


# ---- types -------------------------------------------------------------------------------------


def _reduction(name: str, operand: object, output: Value) -> Reduction | None:
    if not isinstance(operand, Value) or shape_of(output) or not count_elements(operand):
        return None
    given, made = dtype_of(operand), dtype_of(output)
    op = ROW_OPS[REDUCTIONS[name]]
    is_same = name in ("sum", "any", "all") or given == made
    if made not in op.dtypes or not is_same or (name == "mean" and made not in FLOAT):
        return None
    return Reduction(op, operand, made, name == "mean")


def _typed(
    op: RowOp, operands: Sequence[object], output: Value, default_dtype: str
) -> RowCall | None:
    items = [item for item in operands if isinstance(item, Value | bool | int | float)]
    if len(items) != len(operands) or not any(isinstance(item, Value) for item in items):
        return None
    dtypes = _operand_dtypes(op, items, default_dtype)
    if dtypes is None or dtypes[-1] is None:
        return None
    computes = op.dtypes[0] if op.casts == "to" else dtypes[-1]
    if computes not in op.dtypes or (op.returns or computes) != dtype_of(output):
        return None
    if broadcast([shape_of(item) for item in items]) != shape_of(output):
        return None
    return RowCall(op, tuple(items), tuple(map(str, dtypes)), computes)


def _operand_dtypes(
    op: RowOp, items: Sequence[Item], default_dtype: str
) -> Sequence[str | None] | None:
    """The dtype to which each operand is cast before the operation."""
    is_number = [not isinstance(item, Value) for item in items]
    match op.casts:
        case "to":
            return [None if is_number[0] else dtype_of(items[0])]  # type: ignore[arg-type]
        case "to_bool":
            return None if any(is_number) else ["bool"] * len(items)
        case "after_condition":
            condition, *others = items
            if is_number[0] or dtype_of(condition) != "bool":  # type: ignore[arg-type]
                return None
            return ["bool", *[promote(others, default_dtype)] * 2]
        case "tensors_together" if any(is_number):
            return None
        case "literal_bounds" if is_number[0] or not all(is_number[1:]):
            return None
    common = promote(items, default_dtype)
    if op.casts == "to_float" and common not in FLOAT:
        common = default_dtype
    return [common] * len(items)
