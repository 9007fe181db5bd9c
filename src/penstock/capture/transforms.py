"""`torch.func.grad` and its kin inside a program: what they compute is recorded, by operators.

A transform wraps traced values and takes torch's calls apart itself; what is left arrives at the
traced values as operators, with all sizes written out. So the values it reads must have no dynamic
dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad

from penstock.calls.structure import flatten, map_leaves
from penstock.capture.own_gradients import own_gradients
from penstock.capture.recording import record
from penstock.capture.refusals import mutation
from penstock.capture.traced_tensor import TracedTensor
from penstock.ir.types import TensorType

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer

_ALIASES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)

#: Operators that change the shape of a tensor and not its contents.
_RESHAPES = frozenset({"aten::squeeze_", "aten::unsqueeze_", "aten::t_", "aten::transpose_"})


def is_transforming() -> bool:
    """Whether a transform of `torch.func` is at work."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_transformed() -> bool:
    """Whether calls here are to be differentiated or vectorised by torch itself, as they run:
    inside of a transform, or of forward-mode differentiation.
    """
    return is_transforming() or forward_ad._current_level >= 0


def call_transformed(
    tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Leave a call to the transform; its operators come back to `record_operator`."""
    args, kwargs = map_leaves(partial(_taken_in, tracer), (args, kwargs))
    before, tracer.records_operators = tracer.records_operators, True
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)
    finally:
        tracer.records_operators = before


def _taken_in(tracer: Tracer, leaf: Any) -> Any:
    """Weights and constants are part of the program, also where a transform reads them."""
    if not isinstance(leaf, torch.Tensor) or isinstance(leaf, TracedTensor):
        return leaf
    if torch._C._functorch.is_functorch_wrapped_tensor(leaf):
        return leaf
    with temporarily_clear_interpreter_stack():
        return tracer.tensor(leaf)


def record_operator(
    tracer: Tracer, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Add an operator to the program; copies that autograd makes for itself are left out."""
    leaves, _ = flatten((args, kwargs))
    for leaf in leaves:
        if isinstance(leaf, TracedTensor) and _is_dynamic(leaf):
            tracer.swallowed = own_gradients(
                "torch.func: a transform inside a program needs sizes that never change.",
                f"a traced tensor of type {leaf.traced.value.type}",
                "Apply it to values without a dynamic dimension, such as elements of the sequence.",
            )
            raise tracer.swallowed
    if operator in _ALIASES:
        return TracedTensor(args[0].traced)
    tracer.records_operators = False
    try:
        if operator._schema.is_mutable:
            return _change_in_place(tracer, operator, args, kwargs)
        return record(tracer, operator, args, kwargs)
    finally:
        tracer.records_operators = True


def _change_in_place(
    tracer: Tracer, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Transforms change tensors that they have just made: the tensor stands for the result then."""
    changed, name = args[0], operator._schema.name
    is_reshape = name in _RESHAPES
    if not is_reshape and (not name.endswith("_") or tracer.is_aliased(changed)):
        raise mutation(name.removeprefix("aten::"), changed, "a view inside a transform")
    packet = getattr(torch.ops.aten, name.removeprefix("aten::").removesuffix("_"))
    pure = getattr(packet, operator._overloadname)
    changed.traced = record(tracer, pure, args, kwargs).traced
    if is_reshape:
        with torch._C._DisableTorchDispatch():
            operator(*args, **kwargs)
    return changed


def refuse_wrapped(tensor: torch.Tensor) -> None:
    """Raise if a value that a transform has wrapped is used where the program takes its values."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise own_gradients(
            "Control flow cannot run inside a function that torch.func transforms.",
            "a value wrapped by torch.func",
            "Transform the straight-line parts alone, or differentiate what the program returns.",
        )


def _is_dynamic(tensor: TracedTensor) -> bool:
    kind = tensor.traced.value.type
    return isinstance(kind, TensorType) and kind.is_dynamic
