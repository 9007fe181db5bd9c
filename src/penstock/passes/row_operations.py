"""The closed table of row-wise operations: what native loops compute on scalars, and derivatives.

An expression is Python that Numba compiles. `{0}`, `{1}` are operands already cast to the dtype of
the computation, whose constructor is `T`; `{y}` is the result and `{g}` its cotangent. Expressions
equal torch's eager result in value, derivatives equal torch's, at ties and at the edges of domains
too. An operation that is absent keeps its loop out of native code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

INTEGRAL = ("int32", "int64")
FLOAT = ("float32", "float64")
NUMBER = (*INTEGRAL, *FLOAT)
ANY = ("bool", *NUMBER)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOp:
    """One row-wise operation with all its rules."""

    name: str
    #: torch's parameter names, in the order of the operands.
    parameters: tuple[str, ...]
    #: How the dtype of the computation is found: see `row_calls`.
    casts: str
    #: The dtypes of the computation.
    dtypes: tuple[str, ...]
    expression: str
    #: The cotangent of each operand; None: no gradient flows to it.
    derivatives: tuple[str | None, ...]
    #: The result dtype; None: that of the computation.
    returns: str | None
    #: Whether a zero as the last operand is refused.
    refuses_zero: bool
    #: Names of this operation both in `torch` and in `torch.Tensor`.
    names: tuple[str, ...]
    #: Further full names; operations that share one serve different dtypes.
    spellings: tuple[str, ...]
    #: Full names that take the operands in reverse.
    reflected: tuple[str, ...]


def _op(
    name: str,
    expression: str,
    derivatives: tuple[str | None, ...],
    *,
    parameters: tuple[str, ...] = ("input", "other"),
    casts: str = "together",
    dtypes: tuple[str, ...] = NUMBER,
    returns: str | None = None,
    refuses_zero: bool = False,
    names: tuple[str, ...] = (),
    spellings: tuple[str, ...] = (),
    reflected: tuple[str, ...] = (),
) -> RowOp:
    return RowOp(
        name=name,
        parameters=parameters,
        casts=casts,
        dtypes=dtypes,
        expression=expression,
        derivatives=derivatives,
        returns=returns,
        refuses_zero=refuses_zero,
        names=names,
        spellings=spellings,
        reflected=reflected,
    )


def _methods(*names: str) -> tuple[str, ...]:
    return tuple(f"torch.Tensor.{name}" for name in names)


def _unary(
    name: str,
    expression: str,
    derivative: str | None,
    *,
    casts: str = "to_float",
    dtypes: tuple[str, ...] = FLOAT,
    aliases: tuple[str, ...] = (),
    spellings: tuple[str, ...] = (),
) -> RowOp:
    return _op(
        name,
        expression,
        (derivative,),
        parameters=("input",),
        casts=casts,
        dtypes=dtypes,
        names=(name, *aliases),
        spellings=spellings,
    )


_ARITHMETIC = (
    _op("add", "{0} + {1}", ("{g}", "{g}"), names=("add",), spellings=_methods("__add__"),
        reflected=_methods("__radd__")),
    _op("sub", "{0} - {1}", ("{g}", "-{g}"), names=("sub", "subtract"),
        spellings=_methods("__sub__"), reflected=("torch.rsub", *_methods("rsub", "__rsub__"))),
    _op("mul", "{0} * {1}", ("{g} * {1}", "{g} * {0}"), names=("mul", "multiply"),
        spellings=_methods("__mul__"), reflected=_methods("__rmul__")),
    _op("true_divide", "{0} / {1}", ("{g} / {1}", "-{g} * ({0} / {1} / {1})"), casts="to_float",
        dtypes=FLOAT, names=("div", "divide", "true_divide"),
        spellings=_methods("__truediv__", "__div__")),
    # torch divides a number by a tensor in two roundings.
    _op("reciprocal_multiply", "T(1) / {0} * {1}", ("-{g} * {1} / ({0} * {0})", None),
        casts="to_float", dtypes=FLOAT, spellings=_methods("__rtruediv__", "__rdiv__")),
    _op("floor_divide", "{0} // {1}", (None, None), dtypes=INTEGRAL, refuses_zero=True,
        names=("floor_divide",), spellings=_methods("__floordiv__"),
        reflected=_methods("__rfloordiv__")),
    _op("remainder", "{0} % {1}", (None, None), dtypes=INTEGRAL, refuses_zero=True,
        names=("remainder",), spellings=_methods("__mod__"), reflected=_methods("__rmod__")),
    _unary("neg", "-{0}", "-{g}", casts="together", dtypes=NUMBER, aliases=("negative",),
           spellings=_methods("__neg__")),
    _unary("positive", "{0}", "{g}", casts="together", dtypes=NUMBER,
           spellings=_methods("__pos__")),
    _unary("abs", "abs({0})", "{g} * (T({0} > T(0)) - T({0} < T(0)))", casts="together",
           dtypes=NUMBER, aliases=("absolute",), spellings=_methods("__abs__")),
    _unary("square", "{0} * {0}", "{g} * (T(2) * {0})", casts="together", dtypes=NUMBER),
    _unary("reciprocal", "T(1) / {0}", "-{g} * ({y} * {y})"),
    _unary("sign", "T({0} > T(0)) - T({0} < T(0))", "T(0)", casts="together", dtypes=NUMBER),
)  # fmt: skip

_FUNCTIONS = (
    _unary("sqrt", "sqrt({0})", "{g} / (T(2) * {y})"),
    _unary("rsqrt", "T(1) / sqrt({0})", "T(-0.5) * {g} * ({y} * {y} * {y})"),
    _unary("exp", "exp({0})", "{g} * {y}"),
    _unary("expm1", "expm1({0})", "{g} * ({y} + T(1))"),
    _unary("log", "log({0})", "{g} / {0}"),
    _unary("log1p", "log1p({0})", "{g} / ({0} + T(1))"),
    _unary("log2", "log2({0})", "{g} / ({0} * T(0.6931471805599453))"),
    _unary("log10", "log10({0})", "{g} / ({0} * T(2.302585092994046))"),
    _unary("sin", "sin({0})", "{g} * cos({0})"),
    _unary("cos", "cos({0})", "-{g} * sin({0})"),
    _unary("tan", "tan({0})", "{g} * (T(1) + {y} * {y})"),
    _unary("asin", "asin({0})", "{g} / sqrt(T(1) - {0} * {0})", aliases=("arcsin",)),
    _unary("acos", "acos({0})", "-{g} / sqrt(T(1) - {0} * {0})", aliases=("arccos",)),
    _unary("atan", "atan({0})", "{g} / ({0} * {0} + T(1))", aliases=("arctan",)),
    _unary("sinh", "sinh({0})", "{g} * cosh({0})"),
    _unary("cosh", "cosh({0})", "{g} * sinh({0})"),
    _unary("tanh", "tanh({0})", "{g} * (T(1) - {y} * {y})",
           spellings=("torch.nn.functional.tanh",)),
    _unary("sigmoid", "T(1) / (T(1) + exp(-{0}))", "{g} * (T(1) - {y}) * {y}",
           spellings=("torch.nn.functional.sigmoid", "torch.special.expit")),
    _unary("erf", "erf({0})", "T(1.1283791670955126) * exp(-({0} * {0})) * {g}"),
    _unary("floor", "floor({0})", "T(0)", casts="together"),
    _unary("ceil", "ceil({0})", "T(0)", casts="together"),
    _unary("trunc", "trunc({0})", "T(0)", casts="together", aliases=("fix",)),
    _unary("round", "rint({0})", "T(0)", casts="together"),
    _unary("relu", "T(0) if {0} <= T(0) else {0}", "T(0) if {y} <= T(0) else {g}",
           casts="together", spellings=("torch.nn.functional.relu",)),
    _unary("silu", "{0} / (T(1) + exp(-{0}))",
           "{g} * (T(1) + {0} * (T(1) - T(1) / (T(1) + exp(-{0})))) / (T(1) + exp(-{0}))",
           spellings=("torch.nn.functional.silu",)),
)  # fmt: skip


def _comparison(name: str, sign: str, *long_names: str) -> RowOp:
    return _op(
        name,
        f"{{0}} {sign} {{1}}",
        (None, None),
        dtypes=ANY,
        returns="bool",
        names=(name, *long_names),
        spellings=_methods(f"__{name}__"),
    )


_COMPARISONS = (
    _comparison("eq", "=="),
    _comparison("ne", "!=", "not_equal"),
    _comparison("lt", "<", "less"),
    _comparison("le", "<=", "less_equal"),
    _comparison("gt", ">", "greater"),
    _comparison("ge", ">=", "greater_equal"),
    _op("isnan", "{0} != {0}", (None,), parameters=("input",), dtypes=NUMBER, returns="bool",
        names=("isnan",)),
    _op("isfinite", "{0} - {0} == T(0)", (None,), parameters=("input",), dtypes=NUMBER,
        returns="bool", names=("isfinite",)),
    _op("isinf", "{0} == {0} and {0} - {0} != T(0)", (None,), parameters=("input",), dtypes=NUMBER,
        returns="bool", names=("isinf",)),
)  # fmt: skip

_BITS = ("bool", *INTEGRAL)
_LOGIC = (
    _op("logical_and", "{0} and {1}", (None, None), casts="to_bool", dtypes=("bool",),
        names=("logical_and",)),
    _op("logical_or", "{0} or {1}", (None, None), casts="to_bool", dtypes=("bool",),
        names=("logical_or",)),
    _op("logical_xor", "{0} != {1}", (None, None), casts="to_bool", dtypes=("bool",),
        names=("logical_xor",)),
    _op("logical_not", "not {0}", (None,), parameters=("input",), casts="to_bool",
        dtypes=("bool",), names=("logical_not",)),
    _op("bitwise_and", "{0} & {1}", (None, None), dtypes=_BITS, names=("bitwise_and",),
        spellings=_methods("__and__"), reflected=_methods("__rand__")),
    _op("bitwise_or", "{0} | {1}", (None, None), dtypes=_BITS, names=("bitwise_or",),
        spellings=_methods("__or__"), reflected=_methods("__ror__")),
    _op("bitwise_xor", "{0} ^ {1}", (None, None), dtypes=_BITS, names=("bitwise_xor",),
        spellings=_methods("__xor__"), reflected=_methods("__rxor__")),
    _op("bitwise_not", "T(-1) - {0}", (None,), parameters=("input",), dtypes=INTEGRAL,
        names=("bitwise_not",), spellings=_methods("__invert__")),
    _op("not", "not {0}", (None,), parameters=("input",), dtypes=("bool",), names=("bitwise_not",),
        spellings=_methods("__invert__")),
)  # fmt: skip

_CHOSEN = "T(0) if {0} < {1} else ({g} / T(2) if {0} == {1} else {g})"
_OTHER = "T(0) if {1} < {0} else ({g} / T(2) if {0} == {1} else {g})"
_CHOICES = (
    _op("where", "{1} if {0} else {2}", (None, "{g} if {0} else T(0)", "T(0) if {0} else {g}"),
        parameters=("condition", "input", "other"), casts="after_condition", dtypes=ANY,
        spellings=("torch.where",)),
    _op("maximum", "{1} if {1} > {0} or {1} != {1} else {0}", (_CHOSEN, _OTHER),
        casts="tensors_together", names=("maximum", "max")),
    _op("minimum", "{1} if {1} < {0} or {1} != {1} else {0}", (_OTHER, _CHOSEN),
        casts="tensors_together", names=("minimum", "min")),
    _op("clamp_min", "{1} if {0} < {1} else {0}", ("{g} if {0} >= {1} else T(0)", None),
        parameters=("input", "min"), casts="literal_bounds", names=("clamp_min",)),
    _op("clamp_max", "{1} if {0} > {1} else {0}", ("{g} if {0} <= {1} else T(0)", None),
        parameters=("input", "max"), casts="literal_bounds", names=("clamp_max",)),
    _op("clamp",
        "{2} if ({1} if {0} < {1} else {0}) > {2} else ({1} if {0} < {1} else {0})",
        ("{g} if {0} >= {1} and {0} <= {2} else T(0)", None, None),
        parameters=("input", "min", "max"), casts="literal_bounds", names=("clamp",)),
)  # fmt: skip

#: Powers by the exponents that torch treats apart; others are `pow`, on floats.
_POWERS = (
    _op("pow", "{0} ** {1}",
        ("T(0) if {1} == T(0) else {g} * ({1} * {0} ** ({1} - T(1)))",
         "T(0) if {0} == T(0) and {1} >= T(0) else {g} * ({y} * log({0}))"),
        parameters=("input", "exponent"), dtypes=FLOAT),
    _op("cube", "{0} * {0} * {0}", ("{g} * (T(3) * ({0} * {0}))",), parameters=("input",)),
)  # fmt: skip

_CASTS = tuple(
    _op(
        f"to_{target}",
        "{0}" if target != "bool" else "{0} != 0",
        ("{g}",),
        parameters=("input",),
        casts="to",
        dtypes=(target,),
        spellings=_methods(method),
    )
    for target, method in [
        ("bool", "bool"),
        ("int32", "int"),
        ("int64", "long"),
        ("float32", "float"),
        ("float64", "double"),
    ]
)

_COPIES = (
    _unary("clone", "{0}", "{g}", casts="together", dtypes=ANY, aliases=("contiguous",)),
    _unary("detach", "{0}", None, casts="together", dtypes=ANY),
)

ROW_OPS: Mapping[str, RowOp] = MappingProxyType(
    {
        op.name: op
        for op in (
            *_ARITHMETIC,
            *_FUNCTIONS,
            *_COMPARISONS,
            *_LOGIC,
            *_CHOICES,
            *_POWERS,
            *_CASTS,
            *_COPIES,
        )
    }
)
