"""Which rule each operator has; one that is in no rule keeps its block from being padded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.run.batched.functorch_adapter import operator_name
from penstock.run.padding import mixing, moves, views
from penstock.run.padding.pointwise import GUARDED, SAFE, apply_pointwise
from penstock.run.padding.products import LAYOUTS, multiply
from penstock.run.padding.ragged import greatest_of, least_of

#: Takes (frame, step, args, kwargs), values as `Ragged` and sizes as polynomials.
Rule = Callable[..., Any]

#: By the operator's name and overload.
_BY_OVERLOAD: dict[str, Rule] = {
    "max.default": mixing.greatest_of_all,
    "min.default": mixing.least_of_all,
    "sum.default": mixing.total_of_all,
    "any.default": mixing.total_of_all,
    "all.default": mixing.holds_for_all_of_all,
    "max.other": apply_pointwise,
    "min.other": apply_pointwise,
    "cumsum.default": mixing.running,
}

#: By the operator's name, whatever the overload.
_BY_NAME: dict[str, Rule] = {
    **dict.fromkeys((*SAFE, *GUARDED), apply_pointwise),
    **dict.fromkeys(LAYOUTS, multiply),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias"), views.view),
    **dict.fromkeys(("permute", "transpose", "t"), views.permute),
    **dict.fromkeys(("squeeze", "squeeze_"), views.squeeze),
    **dict.fromkeys(("split", "split_with_sizes", "unbind", "chunk"), moves.pieces),
    **dict.fromkeys(("zeros", "ones", "full", "empty", "new_zeros", "new_ones"), moves.make),
    **dict.fromkeys(("new_full", "new_empty"), moves.make),
    **dict.fromkeys(("tril", "triu"), moves.triangle),
    **dict.fromkeys(("_softmax", "_safe_softmax", "_log_softmax"), mixing.softmax),
    **dict.fromkeys(mixing.LOSSES, mixing.loss_of_entries),
    "unsqueeze": views.unsqueeze,
    "expand": views.expand,
    "slice": moves.cut,
    "select": moves.select,
    "flip": moves.flip,
    "cat": moves.join,
    "stack": moves.stack,
    "constant_pad_nd": moves.pad,
    "arange": moves.count,
    "sum": mixing.total,
    "any": mixing.total,
    "all": mixing.holds_for_all,
    "amax": mixing.greatest,
    "max": mixing.greatest,
    "amin": mixing.least,
    "min": mixing.least,
    "argmax": mixing.place_of(least_of),
    "argmin": mixing.place_of(greatest_of),
    "logsumexp": mixing.sum_of_exponentials,
    "prod": mixing.produce,
    "mean": mixing.mean,
    "var": mixing.variance,
    "linalg_vector_norm": mixing.norm,
    "nll_loss_forward": mixing.loss,
    "native_layer_norm": mixing.normalise,
    "embedding": mixing.look_up,
    "gather": mixing.gather,
    "convolution": mixing.convolve,
}


def rule_for(operator: torch._ops.OpOverload) -> Rule | None:
    """The rule of an operator; None where it has none."""
    overload = f"{operator_name(operator)}.{operator._overloadname}"
    return _BY_OVERLOAD.get(overload) or _BY_NAME.get(operator_name(operator))
