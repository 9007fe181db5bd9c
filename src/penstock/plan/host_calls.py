"""From a torch call to a host operation: which operation it is, and its operands in order.

Only the form of the call is looked at (name, positional and keyword arguments); values are passed
through untouched, and their dtypes are checked later by `HostOp.resolve`. A call with an argument
that the table does not know (`alpha`, `out`, a device) does not bind, and so belongs in a block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from penstock.plan.host import HOST_OPS, canonical
from penstock.plan.host_operation import HostOp

_Binder = Callable[[Sequence[object], Mapping[str, object]], "HostCall | None"]


class HostCall(NamedTuple):
    """A host operation and its operands as the program gave them."""

    op: HostOp
    operands: tuple[object, ...]


def bind(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> HostCall | None:
    """The host call that equals the torch call `name(*args, **kwargs)`; None: there is none."""
    special = _SPECIAL.get(name)
    if special is not None:
        return special(args, kwargs)
    known = canonical(name)
    if known is None:
        return None
    op_name, is_reversed = known
    call = _bind_parameters(op_name, args, kwargs)
    if call is not None and is_reversed:
        return call._replace(operands=call.operands[::-1])
    return call


def _bind_parameters(
    op_name: str, args: Sequence[object], kwargs: Mapping[str, object]
) -> HostCall | None:
    op = HOST_OPS[op_name]
    named = dict(zip(op.parameters, args, strict=False))
    is_clash = len(args) > len(op.parameters) or not named.keys().isdisjoint(kwargs)
    named |= kwargs
    if is_clash or named.keys() != set(op.parameters):
        return None
    return HostCall(op, tuple(named[parameter] for parameter in op.parameters))


def _bind_clamp(args: Sequence[object], kwargs: Mapping[str, object]) -> HostCall | None:
    named = {**dict(zip(("input", "min", "max"), args, strict=False)), **kwargs}
    given = {name: value for name, value in named.items() if value is not None}
    if given.keys() == {"input", "min"}:
        return _bind_parameters("clamp_min", (), given)
    if given.keys() == {"input", "max"}:
        return _bind_parameters("clamp_max", (), given)
    return _bind_parameters("clamp", (), given)


def _bind_division(args: Sequence[object], kwargs: Mapping[str, object]) -> HostCall | None:
    others = {name: value for name, value in kwargs.items() if name != "rounding_mode"}
    rounding = kwargs.get("rounding_mode")
    if rounding not in (None, "floor"):
        return None
    return _bind_parameters("floor_divide" if rounding else "true_divide", args, others)


def _bind_power(args: Sequence[object], kwargs: Mapping[str, object]) -> HostCall | None:
    exponent = args[1] if len(args) == 2 else None
    if kwargs or type(exponent) is not int or exponent != 2:
        return None
    return _bind_parameters("square", args[:1], {})


def _bind_where_method(args: Sequence[object], kwargs: Mapping[str, object]) -> HostCall | None:
    if kwargs or len(args) != 3:
        return None
    return _bind_parameters("where", (args[1], args[0], args[2]), {})


def _bind_cast(args: Sequence[object], kwargs: Mapping[str, object]) -> HostCall | None:
    targets = (*args[1:], *kwargs.values())
    if len(targets) != 1 or not kwargs.keys() <= {"dtype"}:
        return None
    op_name = f"to_{str(targets[0]).removeprefix('torch.')}"
    return _bind_parameters(op_name, args[:1], {}) if op_name in HOST_OPS else None


def _in_both(names: Sequence[str], binder: _Binder) -> dict[str, _Binder]:
    return {f"{owner}.{name}": binder for owner in ("torch", "torch.Tensor") for name in names}


#: Calls whose arguments are not simply the operands.
_SPECIAL: Mapping[str, _Binder] = {
    **_in_both(["clamp", "clip"], _bind_clamp),
    **_in_both(["div", "divide"], _bind_division),
    **_in_both(["pow"], _bind_power),
    "torch.Tensor.__pow__": _bind_power,
    "torch.Tensor.where": _bind_where_method,
    "torch.Tensor.to": _bind_cast,
    "torch.Tensor.type": _bind_cast,
}
