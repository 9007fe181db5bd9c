"""Host operations as instructions of the kernel, for integers and booleans."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.plan.host import HOST_OPS
from penstock.plan.host_types import literal_dtype
from penstock.plan.native import opcodes as op
from penstock.plan.native.program import NotNative

_INTEGRAL = ("bool", "int64")

#: Emits one arithmetic instruction on operands, and says where its result is.
Emit = Callable[..., int]

#: For each dtype of the computation the operation, and whether operands are swapped.
_BINARY: dict[str, dict[str, tuple[int, bool]]] = {
    "add": {"int64": (op.ADD, False), "bool": (op.OR, False)},
    "sub": {"int64": (op.SUBTRACT, False)},
    "mul": {"int64": (op.MULTIPLY, False), "bool": (op.AND, False)},
    "floor_divide": {"int64": (op.FLOOR_DIVIDE, False)},
    "remainder": {"int64": (op.REMAINDER, False)},
    "eq": dict.fromkeys(_INTEGRAL, (op.EQUAL, False)),
    "ne": dict.fromkeys(_INTEGRAL, (op.NOT_EQUAL, False)),
    "lt": dict.fromkeys(_INTEGRAL, (op.LESS, False)),
    "le": dict.fromkeys(_INTEGRAL, (op.LESS_EQUAL, False)),
    "gt": dict.fromkeys(_INTEGRAL, (op.LESS, True)),
    "ge": dict.fromkeys(_INTEGRAL, (op.LESS_EQUAL, True)),
    "logical_and": {"bool": (op.AND, False)},
    "logical_or": {"bool": (op.OR, False)},
    "logical_xor": {"bool": (op.XOR, False)},
    "bitwise_and": dict.fromkeys(_INTEGRAL, (op.AND, False)),
    "bitwise_or": dict.fromkeys(_INTEGRAL, (op.OR, False)),
    "bitwise_xor": dict.fromkeys(_INTEGRAL, (op.XOR, False)),
    "minimum": dict.fromkeys(_INTEGRAL, (op.MINIMUM, False)),
    "maximum": dict.fromkeys(_INTEGRAL, (op.MAXIMUM, False)),
    "clamp_min": {"int64": (op.MAXIMUM, False)},
    "clamp_max": {"int64": (op.MINIMUM, False)},
}

_UNARY: dict[str, dict[str, int]] = {
    "neg": {"int64": op.NEGATE},
    "positive": {"int64": op.COPY},
    "abs": {"int64": op.ABSOLUTE},
    "logical_not": {"bool": op.IS_FALSE},
    "bitwise_not": {"int64": op.INVERT, "bool": op.IS_FALSE},
    "to_int64": {"int64": op.COPY},
    "to_bool": {"bool": op.COPY},
}


def emit_host_step(
    name: str,
    operands: Sequence[tuple[int, str, bool]],
    default_dtype: str,
    emit: Emit,
) -> int:
    """One host operation on (register, dtype, whether it is a literal): where its result is."""
    dtypes, literal = [o[1] for o in operands], [o[2] for o in operands]
    resolution = HOST_OPS[name].resolve(dtypes, literal, default_dtype)
    assert resolution is not None, f"{name} was sliced as a host operation"
    if not set(resolution.operand_dtypes) <= set(_INTEGRAL):
        raise NotNative(f"{name} of floats on the host")
    cast = [
        emit(op.IS_TRUE, register) if dtype == "int64" and target == "bool" else register
        for (register, dtype, _), target in zip(operands, resolution.operand_dtypes, strict=True)
    ]
    kind = resolution.operand_dtypes[-1]
    if name == "square":
        return emit(op.MULTIPLY, cast[0], cast[0])
    if name == "where":
        return emit(op.CHOOSE, *cast)
    if name == "clamp":
        return emit(op.MINIMUM, emit(op.MAXIMUM, cast[0], cast[1]), cast[2])
    if kind in _UNARY.get(name, {}):
        return emit(_UNARY[name][kind], cast[0])
    if kind not in _BINARY.get(name, {}):
        raise NotNative(f"{name} on the host")
    number, is_swapped = _BINARY[name][kind]
    return emit(number, *(cast[::-1] if is_swapped else cast))


def literal_kind(value: object) -> str:
    """The dtype of a literal operand, which must be an integer or a boolean."""
    dtype = literal_dtype(value)
    if dtype not in _INTEGRAL:
        raise NotNative("a number on the host that is no integer")
    assert dtype is not None
    return dtype
