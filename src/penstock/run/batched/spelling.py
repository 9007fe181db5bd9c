"""How an ATen operator is written in Python so that calling it costs least.

An operator overload object costs about a microsecond a call more than torch's own functions, which
parse their arguments in C. So operators are written as `torch.*` functions, tensor methods or
Python operators; the overload itself is the last resort, and the only way where the Python function
of that name takes other arguments.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping, Sequence

import torch

from penstock.run.batched.functorch_adapter import operator_name

aten = torch.ops.aten

#: Tensor methods that take their sizes as separate arguments.
_METHODS = {
    aten.reshape.default: "reshape",
    aten.permute.default: "permute",
    aten.expand.default: "expand",
    aten.narrow.default: "narrow",
    aten.select.int: "select",
    aten._to_copy.default: "to",
}
_OPERATORS = {
    aten.add.Tensor: "+",
    aten.sub.Tensor: "-",
    aten.mul.Tensor: "*",
    aten.div.Tensor: "/",
}
#: Functions that give the same values; `split` proper also keeps books on which pieces share
#: memory.
_CHEAPER = {aten.split.Tensor: "torch.unsafe_split"}
#: The Python functions of these names take other arguments than the operators.
_AS_THEY_ARE = frozenset({"index", "index_put", "_unsafe_index", "_unsafe_index_put", "sym_size"})


def spell(
    operator: torch._ops.OpOverload,
    args: Sequence[str],
    kwargs: Mapping[str, str],
    bind: Callable[[str, object], str],
) -> str:
    """The Python expression of a call; `bind` makes an object available under a name."""
    if operator in _OPERATORS and len(args) == 2 and not kwargs:
        return f"{_atom(args[0])} {_OPERATORS[operator]} {_atom(args[1])}"
    if operator is aten.slice.Tensor:
        return _slice(args)
    keywords = [f"{key}={value}" for key, value in kwargs.items()]
    if operator in _METHODS:
        plain = [_spread(arg) for arg in args[1:]]
        return f"{_atom(args[0])}.{_METHODS[operator]}({', '.join([*plain, *keywords])})"
    arguments = ", ".join([*args, *keywords])
    return f"{_function(operator, bind)}({arguments})"


def spell_overload(
    operator: torch._ops.OpOverload,
    args: Sequence[str],
    kwargs: Mapping[str, str],
    bind: Callable[[str, object], str],
) -> str:
    """The same call on the overload object itself: slower, and exact by construction."""
    arguments = ", ".join([*args, *(f"{key}={value}" for key, value in kwargs.items())])
    return f"{_overload(operator, bind)}({arguments})"


def _function(operator: torch._ops.OpOverload, bind: Callable[[str, object], str]) -> str:
    if operator in _CHEAPER:
        return _CHEAPER[operator]
    name = operator_name(operator)
    if operator.namespace == "aten" and name not in _AS_THEY_ARE:
        for prefix, module in (
            ("torch", torch),
            ("torch._VF", torch._C._VariableFunctions),
            ("torch._C._nn", torch._C._nn),
        ):
            if isinstance(getattr(module, name, None), types.BuiltinFunctionType):
                return f"{prefix}.{name}"
        if isinstance(getattr(torch.Tensor, name, None), types.MethodDescriptorType):
            return f"torch.Tensor.{name}"
    return _overload(operator, bind)


def _overload(operator: torch._ops.OpOverload, bind: Callable[[str, object], str]) -> str:
    return bind(str(operator).replace(".", "_"), operator)


def _slice(args: Sequence[str]) -> str:
    """Brackets, which torch parses faster than any function; the end "as far as it goes" is left
    out.
    """
    source, dimension, start, end, stride = (*args, *("0", "None", "None", "1")[len(args) - 1 :])
    first = "" if start in ("None", "0") else start
    last = "" if end in ("None", str(sys.maxsize)) else end
    cut = f"{first}:{last}" if stride == "1" else f"{first}:{last}:{stride}"
    if int(dimension) < 0:
        return f"{_atom(source)}[..., {cut}{', :' * (-int(dimension) - 1)}]"
    return f"{_atom(source)}[{':, ' * int(dimension)}{cut}]"


def _spread(text: str) -> str:
    """Sizes one by one: torch parses them faster than a list."""
    return text[1:-1] if text.startswith("[") and text != "[]" else text


def _atom(text: str) -> str:
    simple = text.isidentifier() or text.replace(".", "", 1).isdigit()
    return text if simple else f"({text})"
