"""What follows from sizes: which calls take them as arguments, how they combine, and where they
came from."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from penstock.calls.replay import fill
from penstock.capture.traced_tensor import Facts, Origins
from penstock.capture.type_rules import is_control_type
from penstock.capture.worlds import SizePair
from penstock.ir.program import TorchCall
from penstock.ir.types import TensorType
from penstock.plan.host_calls import bind

#: Functions whose integer arguments are all sizes, or all but the tensor they work on.
_FACTORIES = frozenset(
    ["zeros", "ones", "empty", "full", "eye", "arange", "linspace", "tril_indices", "triu_indices"]
)
_METHODS = frozenset(
    [
        "view",
        "reshape",
        "expand",
        "broadcast_to",
        "repeat",
        "tile",
        "narrow",
        "unflatten",
        "new_zeros",
        "new_ones",
        "new_empty",
        "new_full",
        "split",
        "split_with_sizes",
        "chunk",
        "tensor_split",
        "roll",
        "topk",
        "pad",
        "unfold",
        "one_hot",
        "select",
        "select_scatter",
        "repeat_interleave",
        "kthvalue",
        "as_strided",
        "tril",
        "triu",
        "diagonal",
        "adaptive_avg_pool1d",
        "interpolate",
        "uniform",
        "normal",
    ]
)

#: Those in which a size beyond that of the tensor is an error.
_FITTING = frozenset(
    ["narrow", "split_with_sizes", "unfold", "select", "select_scatter", "topk", "kthvalue", "pad"]
)

#: How hints combine, by the last part of the call's name.
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "__add__": operator.add,
    "__radd__": operator.add,
    "sub": operator.sub,
    "__sub__": operator.sub,
    "__rsub__": lambda left, right: right - left,
    "mul": operator.mul,
    "__mul__": operator.mul,
    "__rmul__": operator.mul,
    "floor_divide": operator.floordiv,
    "__floordiv__": operator.floordiv,
}


def is_size_call(name: str) -> str | None:
    """Whether integers in the call are sizes: "all", "after first", or None."""
    last = name.rsplit(".", 1)[-1]
    if last in _FACTORIES:
        return "all"
    return "after first" if last in _METHODS else None


def must_fit(name: str) -> bool:
    """Whether the sizes in the call must not exceed those of its tensor."""
    return name.rsplit(".", 1)[-1] in _FITTING


def control_facts(
    operation: TorchCall, operands: Sequence[Facts], types: Sequence[TensorType]
) -> dict[str, Any]:
    """Whether the host could compute the call's result, and its value in both worlds."""
    if len(types) != 1 or not is_control_type(types[0]):
        return {}
    kwargs = dict(operation.kwargs)
    if bind(operation.name, operation.args, kwargs) is None:
        return {}
    is_control = all(operand.is_control for operand in operands)
    return {"is_control": is_control, "hint": _combined_hint(operation, operands)}


def _combined_hint(operation: TorchCall, operands: Sequence[Facts]) -> SizePair | None:
    combine = _ARITHMETIC.get(operation.name.rsplit(".", 1)[-1])
    if combine is None or operation.kwargs or any(operand.hint is None for operand in operands):
        return None
    worlds = []
    for world in (0, 1):
        values = fill(operation.args, [operand.hint[world] for operand in operands if operand.hint])
        if len(values) != 2 or not all(isinstance(value, int) for value in values):
            return None
        try:
            worlds.append(combine(*values))
        except ZeroDivisionError:
            return None
    if min(worlds) < 0 or (worlds[0] == worlds[1] and not _all_constant(operands)):
        return None
    return worlds[0], worlds[1]


def _all_constant(operands: Sequence[Facts]) -> bool:
    return all(
        operand.hint is not None and operand.hint[0] == operand.hint[1] for operand in operands
    )


def result_origins(type_: TensorType, operands: Sequence[Facts]) -> tuple[Origins, ...]:
    """The origins of a result's dimensions: those of operand dimensions with the same size.

    Two sizes may be equal by chance. The dimension is then made dynamic without need, or, where
    that cannot be traced, pinned.
    """
    found: dict[int, Origins] = {}
    for operand in operands:
        for size, origins in zip(operand.fakes[0].shape, operand.origins, strict=True):
            if origins and size > 1:
                found[size] = found.get(size, frozenset()) | origins
    return tuple(
        found.get(size, frozenset()) if isinstance(size, int) else frozenset()
        for size in type_.shape
    )
