"""What every torch function does while a program is traced.

The mode sees each call before its arguments are parsed, also factories and calls on real tensors. A
few calls have rules of their own, by name; all others are recorded. No call runs on real contents
here, except those that make constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from penstock.calls.structure import flatten
from penstock.calls.torch_names import name_of
from penstock.capture.autograd_rules import AUTOGRAD_RULES
from penstock.capture.constants import constant_tensor
from penstock.capture.in_place import IN_PLACE_RULES, change_in_place, in_place_form
from penstock.capture.indexing import INDEXING_RULES
from penstock.capture.precision import with_cast_weights
from penstock.capture.random_calls import RANDOM_RULES
from penstock.capture.recording import record
from penstock.capture.tensor_rules import TENSOR_RULES
from penstock.capture.traced_draws import trace_random_call
from penstock.capture.traced_tensor import TracedDimension, TracedTensor
from penstock.capture.transforms import call_transformed, is_transforming
from penstock.plan.host_calls import bind

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer

Rule = Callable[["Tracer", Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

#: Calls with rules of their own.
RULES: dict[str, Rule] = {
    **TENSOR_RULES,
    **INDEXING_RULES,
    **IN_PLACE_RULES,
    **dict.fromkeys(RANDOM_RULES, trace_random_call),
    **AUTOGRAD_RULES,
}


_TENSOR_ATTRIBUTES = frozenset(["T", "mT", "H", "mH", "real", "imag", "data"])
_QUESTIONS = frozenset(
    [
        "dim",
        "is_floating_point",
        "is_complex",
        "is_contiguous",
        "stride",
        "element_size",
        "get_device",
        "is_signed",
    ]
)


class TracingMode(TorchFunctionMode):
    """Send every torch function to the tracer."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if args and isinstance(args[0], FakeTensor):
            return func(*args, **(kwargs or {}))  # the tracer itself asks for a type
        call = call_transformed if is_transforming() else handle
        try:
            return call(self._tracer, func, tuple(args), dict(kwargs or {}))
        except TypeError as error:
            self._tracer.swallowed = error
            raise


def handle(
    tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What user code gets for `function(*args, **kwargs)`."""
    name = name_of(function)
    rule = RULES.get(name)
    if rule is not None:
        return rule(tracer, function, args, kwargs)
    form = in_place_form(name, function, args, kwargs)
    if form is not None:
        return change_in_place(tracer, name, form)
    leaves, _ = flatten((args, kwargs))
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return _constant_result(tracer, function, args, kwargs)
    if not any(isinstance(leaf, TracedTensor) for leaf in leaves) and _is_question(name):
        return function(*args, **kwargs)
    if any(isinstance(item, TracedDimension) for item in args) and bind(name, args, kwargs):
        _values_are_dynamic(tracer, args)
    return record(tracer, function, with_cast_weights(tracer, name, args), kwargs)


def _is_question(name: str) -> bool:
    """Whether the call asks for an attribute of a tensor that is not a tensor."""
    parts = name.split(".")
    if parts[-1] == "__get__":
        return parts[-2] not in _TENSOR_ATTRIBUTES
    return parts[-1] in _QUESTIONS


def _constant_result(
    tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The result of a call without tensors; it is run, and what it makes is constant."""
    result = function(*args, **kwargs)
    return constant_tensor(tracer, result) if isinstance(result, torch.Tensor) else result


def _values_are_dynamic(tracer: Tracer, args: Sequence[Any]) -> None:
    """A size that meets a tensor in arithmetic or a comparison is a value of the program."""
    for item in args:
        if isinstance(item, TracedDimension):
            tracer.dimensions.require_dynamic(item.origins)
