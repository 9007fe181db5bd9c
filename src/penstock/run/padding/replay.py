"""Straight-line code of one instance, run on padded operands by the table of rules."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from penstock.run.batched.functorch_adapter import operator_name
from penstock.run.batched.lift import AsFloat, Inverse
from penstock.run.batched.sizes import Polynomial
from penstock.run.batched.steps import Fact, Step, StraightLine, TensorFact, map_leaves
from penstock.run.padding.ragged import Frame, Ragged, Unpaddable, plain
from penstock.run.padding.table import rule_for


def infinite_constants(code: StraightLine) -> frozenset[Step]:
    """The constants that are not finite everywhere."""
    known = [step for step in code.steps if step.constant is not None]
    return frozenset(s for s in known if not bool(torch.isfinite(s.constant).all()))  # type: ignore[arg-type]


def replay_padded(
    code: StraightLine,
    frame: Frame,
    inputs: Sequence[torch.Tensor],
    infinite: frozenset[Step] = frozenset(),
) -> list[Ragged]:
    """The outputs for inputs whose dynamic dimensions are padded, with zeros; `infinite` are
    constants that are not finite.
    """
    values: dict[Step, Any] = {}
    devices = sorted({tensor.device for tensor in inputs}, key=lambda device: device.type == "cpu")
    device = devices[0] if devices else None
    for step, tensor in zip(code.inputs, inputs, strict=True):
        given = _given(tensor, step.tensor)
        values[step] = Ragged(given.tensor, given.dims, frozenset(given.padded))
    for step in code.steps:
        if step.constant is not None:
            dims = _given(step.constant, step.tensor).dims
            constant = step.constant.to(device)
            values[step] = Ragged(constant, dims, is_finite=step not in infinite)
            continue
        values[step] = _value(frame, step, values, device)
        _check(frame, step.fact, values[step], step)
    return [values[step] for step in code.outputs]


def _given(tensor: torch.Tensor, fact: TensorFact) -> Ragged:
    return Ragged(tensor, tuple(plain((size,)) for size in fact.shape))


def _value(frame: Frame, step: Step, values: dict[Step, Any], device: torch.device | None) -> Any:
    """The value of a call, made where the inputs are: checks run on another device."""

    def resolve(item: Any) -> Any:
        if isinstance(item, torch.device) and device is not None:
            return device
        return values[item] if isinstance(item, Step) else item

    args, kwargs = map_leaves(resolve, step.args), map_leaves(resolve, dict(step.kwargs))
    if step.target is operator.getitem:
        return args[0][args[1]]
    leaves = list(_leaves((args, kwargs)))
    if not _is_dynamic(step.fact) and not any(map(_is_dynamic, leaves)):
        return _as_it_is(step, args, kwargs, leaves)
    rule = rule_for(step.target)
    if rule is None or any(map(_is_dynamic, _leaves(kwargs))):
        raise Unpaddable(operator_name(step.target), "has no rule for padding")
    return rule(frame, step, list(args), kwargs)


def _as_it_is(step: Step, args: Any, kwargs: Any, leaves: Sequence[Any]) -> Any:
    """A call without padding."""

    def tensor(item: Any) -> Any:
        return item.tensor if isinstance(item, Ragged) else item

    made = step.target(*map_leaves(tensor, args), **map_leaves(tensor, kwargs))
    is_finite = all(item.is_finite for item in leaves if isinstance(item, Ragged))
    is_finite &= not any(isinstance(i, float) and abs(i) == float("inf") for i in leaves)
    return _wrapped(made, step.fact, is_finite)


def _wrapped(made: Any, fact: Fact, is_finite: bool) -> Any:
    if isinstance(fact, TensorFact):
        return Ragged(made, _given(made, fact).dims, is_finite=is_finite)
    if isinstance(fact, tuple):
        return tuple(_wrapped(each, of, is_finite) for each, of in zip(made, fact, strict=True))
    return made


def _leaves(tree: Any) -> Iterable[Any]:
    if isinstance(tree, list | tuple):
        for item in tree:
            yield from _leaves(item)
    elif isinstance(tree, dict):
        yield from _leaves(list(tree.values()))
    else:
        yield tree


def _is_dynamic(item: Any) -> bool:
    """Whether a value, a number or what is known of a result depends on a dynamic size."""
    if isinstance(item, Ragged):
        return bool(item.padded)
    if isinstance(item, TensorFact):
        return any(isinstance(size, Polynomial) for size in item.shape)
    if isinstance(item, tuple):
        return any(map(_is_dynamic, item))
    return isinstance(item, Polynomial | AsFloat | Inverse)


def _check(frame: Frame, fact: Fact, value: Any, step: Step) -> None:
    """A rule must give what the operation gives, in its padded size."""
    if isinstance(fact, tuple):
        for each, of in zip(value, fact, strict=True):
            _check(frame, of, each, step)
    elif isinstance(fact, TensorFact):
        shape = tuple(frame.size(size) for size in fact.shape)
        if tuple(value.tensor.shape) != shape or len(value.dims) != len(shape):
            raise Unpaddable(operator_name(step.target), f"is {[*shape]} when padded")
