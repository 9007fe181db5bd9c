"""The closed table of host control: scalar operations computed in numpy for many rows at once.

Each result equals torch's eager result on 0-d CPU tensors in value, sign of zero and dtype; NaN
counts as one value. An operation or a combination of dtypes that torch refuses, or that numpy does
not compute exactly so, is absent: it runs in a block. Left out on purpose: floats under `//` and
`%`, float to int64 (beyond the range of int64 the processor decides), `alpha`, powers but squares.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from penstock.plan.host_operation import HostOp
from penstock.plan.host_rules import (
    CastRule,
    cast_after_condition,
    cast_bool_to_int,
    cast_bounded,
    cast_numbers_together,
    cast_tensor_and_factor,
    cast_tensor_first,
    cast_tensors_to,
    cast_tensors_together,
    cast_together,
    cast_together_to_float,
)

INTEGRAL = ("bool", "int64")
FLOAT = ("float32", "float64")
NUMBER = ("int64", *FLOAT)
ANY = (*INTEGRAL, *FLOAT)


def _on(dtypes: tuple[str, ...], expression: str) -> dict[str, str]:
    return dict.fromkeys(dtypes, expression)


def _methods(*names: str) -> tuple[str, ...]:
    return tuple(f"torch.Tensor.{name}" for name in names)


def _unary(
    name: str,
    expressions: Mapping[str, str],
    *names: str,
    casts: CastRule = cast_together,
    methods: tuple[str, ...] = (),
) -> HostOp:
    return HostOp(
        name=name,
        parameters=("input",),
        casts=casts,
        expressions=expressions,
        expression_by_nonzero=None,
        refuses_overflow=False,
        returns=None,
        names=names,
        spellings=_methods(*methods),
        reflected=(),
    )


def _binary(
    name: str,
    expressions: Mapping[str, str],
    *names: str,
    casts: CastRule = cast_together,
    by_nonzero: str | None = None,
    methods: tuple[str, ...] = (),
    reflected: tuple[str, ...] = (),
) -> HostOp:
    return HostOp(
        name=name,
        parameters=("input", "other"),
        casts=casts,
        expressions=expressions,
        expression_by_nonzero=by_nonzero,
        refuses_overflow=False,
        returns=None,
        names=names,
        spellings=_methods(*methods),
        reflected=reflected,
    )


def _comparison(name: str, sign: str, long_name: str | None) -> HostOp:
    return HostOp(
        name=name,
        parameters=("input", "other"),
        casts=cast_tensor_first,
        expressions=_on(ANY, f"{{0}} {sign} {{1}}"),
        expression_by_nonzero=None,
        refuses_overflow=False,
        returns="bool",
        names=(name, long_name) if long_name else (name,),
        spellings=_methods(f"__{name}__"),
        reflected=(),
    )


def _clamp(
    name: str, parameters: tuple[str, ...], on_int: str, on_float: str, *names: str
) -> HostOp:
    return HostOp(
        name=name,
        parameters=parameters,
        casts=cast_bounded,
        expressions={"int64": on_int, **_on(FLOAT, on_float)},
        expression_by_nonzero=None,
        refuses_overflow=True,
        returns=None,
        names=names,
        spellings=(),
        reflected=(),
    )


def _cast(target: str, method: str) -> HostOp:
    return _unary(
        f"to_{target}", _on((target,), "{0}"), casts=cast_tensors_to(target), methods=(method,)
    )


_ARITHMETIC = (
    _binary("add", _on(ANY, "{0} + {1}"), "add", methods=("__add__", "__radd__")),
    _binary(
        "sub",
        _on(NUMBER, "{0} - {1}"),
        "sub",
        "subtract",
        casts=cast_numbers_together,
        methods=("__sub__",),
        reflected=("torch.rsub", "torch.Tensor.__rsub__"),
    ),
    _binary("mul", _on(ANY, "{0} * {1}"), "mul", "multiply", methods=("__mul__", "__rmul__")),
    _binary(
        "true_divide",
        _on(FLOAT, "{0} / {1}"),
        "div",
        "divide",
        "true_divide",
        casts=cast_together_to_float,
        methods=("__truediv__", "__div__"),
    ),
    # torch divides a number by a tensor in two roundings.
    _binary(
        "reciprocal_multiply",
        _on(FLOAT, "1 / {0} * {1}"),
        casts=cast_tensor_and_factor,
        methods=("__rtruediv__", "__rdiv__"),
    ),
    _binary(
        "floor_divide",
        {"int64": "floor_divide({0}, {1})"},
        "floor_divide",
        by_nonzero="{0} // {1}",
        methods=("__floordiv__",),
        reflected=_methods("__rfloordiv__"),
    ),
    _binary(
        "remainder",
        {"int64": "remainder({0}, {1})"},
        "remainder",
        by_nonzero="{0} % {1}",
        methods=("__mod__",),
        reflected=_methods("__rmod__"),
    ),
    _unary("reciprocal", _on(FLOAT, "1 / {0}"), "reciprocal", casts=cast_together_to_float),
    _unary("neg", _on(NUMBER, "-{0}"), "neg", "negative", methods=("__neg__",)),
    _unary("positive", _on(NUMBER, "{0}"), "positive", methods=("__pos__",)),
    _unary("abs", _on(NUMBER, "abs({0})"), "abs", "absolute", methods=("__abs__",)),
    _unary("square", _on(NUMBER, "{0} * {0}"), "square", casts=cast_bool_to_int),
)

_COMPARISONS = (
    _comparison("eq", "==", None),
    _comparison("ne", "!=", "not_equal"),
    _comparison("lt", "<", "less"),
    _comparison("le", "<=", "less_equal"),
    _comparison("gt", ">", "greater"),
    _comparison("ge", ">=", "greater_equal"),
)

_AS_BOOL = cast_tensors_to("bool")
_LOGIC = (
    _binary("logical_and", {"bool": "{0} & {1}"}, "logical_and", casts=_AS_BOOL),
    _binary("logical_or", {"bool": "{0} | {1}"}, "logical_or", casts=_AS_BOOL),
    _binary("logical_xor", {"bool": "{0} ^ {1}"}, "logical_xor", casts=_AS_BOOL),
    _unary("logical_not", {"bool": "~{0}"}, "logical_not", casts=_AS_BOOL),
    _binary(
        "bitwise_and", _on(INTEGRAL, "{0} & {1}"), "bitwise_and", methods=("__and__", "__rand__")
    ),
    _binary("bitwise_or", _on(INTEGRAL, "{0} | {1}"), "bitwise_or", methods=("__or__", "__ror__")),
    _binary(
        "bitwise_xor", _on(INTEGRAL, "{0} ^ {1}"), "bitwise_xor", methods=("__xor__", "__rxor__")
    ),
    _unary("bitwise_not", _on(INTEGRAL, "~{0}"), "bitwise_not", methods=("__invert__",)),
    _binary(
        "bitwise_left_shift",
        {"int64": "{0} << {1}"},
        "bitwise_left_shift",
        methods=("__lshift__",),
        reflected=_methods("__rlshift__"),
    ),
    _binary(
        "bitwise_right_shift",
        {"int64": "{0} >> {1}"},
        "bitwise_right_shift",
        methods=("__rshift__",),
        reflected=_methods("__rrshift__"),
    ),
)

_CHOICES = (
    HostOp(
        name="where",
        parameters=("condition", "input", "other"),
        casts=cast_after_condition,
        expressions=_on(ANY, "where({0}, {1}, {2})"),
        expression_by_nonzero=None,
        refuses_overflow=True,
        returns=None,
        names=(),
        spellings=("torch.where",),
        reflected=(),
    ),
    _binary(
        "minimum",
        {**_on(INTEGRAL, "minimum({0}, {1})"), **_on(FLOAT, "float_minimum({0}, {1})")},
        "minimum",
        "min",
        casts=cast_tensors_together,
    ),
    _binary(
        "maximum",
        {**_on(INTEGRAL, "maximum({0}, {1})"), **_on(FLOAT, "float_maximum({0}, {1})")},
        "maximum",
        "max",
        casts=cast_tensors_together,
    ),
    _clamp(
        "clamp",
        ("input", "min", "max"),
        "minimum(maximum({0}, {1}), {2})",
        "float_minimum(float_maximum({0}, {1}), {2})",
        "clamp",
        "clip",
    ),
    _clamp(
        "clamp_min", ("input", "min"), "maximum({0}, {1})", "float_maximum({0}, {1})", "clamp_min"
    ),
    _clamp(
        "clamp_max", ("input", "max"), "minimum({0}, {1})", "float_minimum({0}, {1})", "clamp_max"
    ),
)

_CASTS = (
    _cast("int64", "long"),
    _cast("bool", "bool"),
    _cast("float32", "float"),
    _cast("float64", "double"),
)

#: Every operation of host control by its canonical name.
HOST_OPS: Mapping[str, HostOp] = MappingProxyType(
    {op.name: op for op in (*_ARITHMETIC, *_COMPARISONS, *_LOGIC, *_CHOICES, *_CASTS)}
)


def _spell_all() -> dict[str, tuple[str, bool]]:
    spelled: dict[str, tuple[str, bool]] = {}
    for op in HOST_OPS.values():
        both = [f"{owner}.{name}" for name in op.names for owner in ("torch", "torch.Tensor")]
        spelled |= dict.fromkeys((*both, *op.spellings), (op.name, False))
        spelled |= dict.fromkeys(op.reflected, (op.name, True))
    return spelled


_SPELLINGS = _spell_all()


def canonical(name: str) -> tuple[str, bool] | None:
    """The host operation that torch calls `name`, and whether `name` takes the operands in reverse.

    `name` is what `torch.overrides.resolve_name` gives. None: in-place, or not in the table. A name
    alone does not decide: the call's arguments must also bind (`host_calls.bind`) and its dtypes
    resolve (`HostOp.resolve`).
    """
    return _SPELLINGS.get(name)
