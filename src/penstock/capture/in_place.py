"""Changes in place, made harmless: the name is bound to the result of the same call without the
change.

That is right only while no other tensor shares the memory, so views of what is changed are refused;
and only for what the body made itself, so inputs and captured tensors are refused too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from penstock.calls import own_functions
from penstock.calls.torch_names import resolve
from penstock.capture.indexing import plain_index
from penstock.capture.recording import record, record_named
from penstock.capture.refusals import describe, mutation
from penstock.capture.traced_tensor import TracedTensor
from penstock.errors import MutationError, StructureError, report
from penstock.ir.types import TensorType

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer

_OPERATORS = {
    f"__i{name}__": f"__{name}__"
    for name in (
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "and",
        "or",
        "xor",
        "lshift",
        "rshift",
    )
}
#: In-place methods that set attributes rather than contents.
_NOT_CONTENTS = frozenset({"requires_grad_", "share_memory_"})
RESHAPING = frozenset({"squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_"})
_RANDOM = frozenset(["random_", "cauchy_", "geometric_", "log_normal_"])


class Change(NamedTuple):
    """A change in place, as the call that gives the new contents."""

    target: Any
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def in_place_form(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Change | None:
    """The change that a call makes; None for calls that make none."""
    if kwargs.get("out") is not None:
        others = {key: item for key, item in kwargs.items() if key != "out"}
        return Change(kwargs["out"], name, function, args, others)
    base, _, last = name.rpartition(".")
    if last in _OPERATORS:
        return _change(f"{base}.{_OPERATORS[last]}", args, kwargs)
    if last.endswith("_") and not last.endswith("__") and last not in _NOT_CONTENTS:
        return _underscore_form(base, last, args, kwargs)
    arguments = _inplace_argument(function, args, kwargs)
    return _change(name, (), arguments) if arguments is not None else None


def change_in_place(tracer: Tracer, name: str, change: Change) -> TracedTensor:
    """Record the new contents and bind the target to them."""
    target = change.target
    _check_ownership(tracer, name, target)
    result = record_named(tracer, change.name, change.function, change.args, change.kwargs)
    old, new = target.traced.value.type, result.traced.value.type
    if new.dtype != old.dtype and _can_store(target, result):
        result = record(tracer, torch.Tensor.to, (result, target.traced.fakes[0].dtype), {})
    elif new.dtype != old.dtype or not _keeps_shape(name, old, new):
        raise StructureError(
            report(
                f"{name.rsplit('.', 1)[-1]}: the result does not fit into the tensor.",
                facts=[("tensor", str(old)), ("result", str(new))],
                todo="Use the form without an underscore, which makes a new tensor.",
            )
        )
    target.traced = result.traced
    return target  # type: ignore[no-any-return]


def write_item(
    tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """`tensor[index] = value`."""
    target, index, value = args
    items = plain_index(tracer, index)
    call = (target, items if isinstance(index, tuple) else items[0], value)
    change = Change(target, "penstock.set_item", own_functions.set_item, call, {})
    change_in_place(tracer, "torch.Tensor.__setitem__", change)


def keep_attribute(
    tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Calls such as `requires_grad_` mean nothing inside a program."""
    return args[0]


def _change(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Change:
    target = args[0] if args else next(iter(kwargs.values()))
    return Change(target, name, resolve(name), args, kwargs)


def _underscore_form(
    base: str, last: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Change | None:
    if last in ("copy_", "fill_") and args:
        return Change(args[0], "penstock.copy_into", own_functions.copy_into, args[:2], {})
    if last == "zero_":
        return Change(args[0], "torch.zeros_like", torch.zeros_like, args, kwargs)
    target = args[0] if args else kwargs.get("tensor", kwargs.get("input"))
    if target is None:
        return None
    try:
        function: Callable[..., Any] | None = resolve(f"{base}.{last[:-1]}")
    except (AttributeError, ImportError):
        function = None
    if last in _RANDOM or function is None:
        raise _no_other_form(last, target)
    return Change(target, f"{base}.{last[:-1]}", function, args, kwargs)


def takes_inplace(function: Callable[..., Any]) -> bool:
    """Whether the function has an argument `inplace`."""
    return _signature(function) is not None


@cache
def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    if not isinstance(function, FunctionType):
        return None
    try:
        signature = inspect.signature(function)
    except ValueError:
        return None
    return signature if "inplace" in signature.parameters else None


def _inplace_argument(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any] | None:
    """The arguments of a call with `inplace=True`, by name and without it."""
    signature = _signature(function)
    if signature is None:
        return None
    bound = signature.bind(*args, **kwargs).arguments
    return {**bound, "inplace": False} if bound.get("inplace") else None


def _check_ownership(tracer: Tracer, name: str, target: Any) -> None:
    if not isinstance(target, TracedTensor):
        raise mutation(name, target, "a captured tensor")
    facts = target.traced
    tracer.read(target)
    if facts.is_input:
        raise mutation(name, target, "a captured tensor" if facts.is_uniform else "its inputs")
    if facts.scope is not tracer.scope:
        raise mutation(name, target, "a tensor of the enclosing function")
    if tracer.is_aliased(target):
        raise mutation(name, target, "a tensor that shares its memory with another (a view)")


def _can_store(target: TracedTensor, result: TracedTensor) -> bool:
    return torch.can_cast(result.traced.fakes[0].dtype, target.traced.fakes[0].dtype)


def _keeps_shape(name: str, old: TensorType, new: TensorType) -> bool:
    return old.shape == new.shape or name.rsplit(".", 1)[-1] in RESHAPING


def _no_other_form(last: str, target: Any) -> MutationError:
    return MutationError(
        report(
            f"{last}: a program cannot change a tensor in this way.",
            facts=[("call", last), ("tensor", describe(target))],
            todo="Make a new tensor instead, e.g. with torch.rand_like or torch.randn_like.",
        )
    )


IN_PLACE_RULES = {
    "torch.Tensor.__setitem__": write_item,
    "torch.Tensor.requires_grad_": keep_attribute,
}
