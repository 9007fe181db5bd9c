"""Rules for steps that compute each element by itself: operands in their plainest form."""

from __future__ import annotations

from typing import Any

import torch

from penstock.run.batched.peephole import Rewriter
from penstock.run.batched.shape_rules import reshape
from penstock.run.batched.sizes import Size
from penstock.run.batched.steps import Step, TensorFact, map_leaves, read_steps

aten = torch.ops.aten


def plain_numbers(rewriter: Rewriter, step: Step) -> Step | None:
    """`where` takes numbers; no tensor need be made to hold one."""
    if step.target is not aten.where.self or len(step.args) != 3:
        return None
    condition, *choices = step.args
    plain = [_number(choice, step.tensor.dtype) for choice in choices]
    kept = [choice for choice, number in zip(choices, plain, strict=True) if number is None]
    if len(kept) != 1 or kept[0].tensor.dtype != step.tensor.dtype:
        return None
    if _broadcast([condition.tensor.shape, kept[0].tensor.shape]) != step.tensor.shape:
        return None
    args = [kept[0] if number is None else number for number in plain]
    return rewriter.call(step.target, (condition, *args), {}, step.fact)


def _number(step: Any, dtype: torch.dtype) -> int | float | None:
    """The number that a 0-d tensor made of one holds, where it would not change the dtype of a
    choice.
    """
    if not isinstance(step, Step) or step.target is not aten.scalar_tensor.default:
        return None
    number = step.args[0]
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    return (
        number
        if dtype.is_floating_point or (dtype == torch.int64 and number == int(number))
        else None
    )


def is_pointwise(step: Step) -> bool:
    """Whether the step computes each element from the elements at the same place, with
    broadcasting.
    """
    return (
        isinstance(step.target, torch._ops.OpOverload) and torch.Tag.pointwise in step.target.tags
    )


def broadcast_plainly(rewriter: Rewriter, step: Step) -> Step | None:
    """Operands of pointwise steps need no expansion and no leading dimensions of size 1."""
    if not is_pointwise(step) or not isinstance(step.fact, TensorFact):
        return None
    operands = list(dict.fromkeys(read_steps((step.args, step.kwargs))))
    plain = {operand: _plain_operand(operand) for operand in operands}
    for operand in operands:
        trial = {**{other: other for other in operands}, operand: plain[operand]}
        shapes = [trial[other].tensor.shape for other in operands]
        if plain[operand] is operand or _broadcast(shapes) != step.fact.shape:
            continue
        args, kwargs = (
            map_leaves(_replace(trial), step.args),
            map_leaves(_replace(trial), step.kwargs),
        )
        return rewriter.call(step.target, args, kwargs, step.fact)
    return None


def _replace(trial: dict[Step, Step]) -> Any:
    return lambda leaf: trial[leaf] if isinstance(leaf, Step) else leaf


def _plain_operand(operand: Step) -> Step:
    if operand.target is aten.expand.default:
        source: Step = operand.args[0]
        return source
    if operand.target is aten.reshape.default:
        source = operand.args[0]
        lead = len(operand.tensor.shape) - len(source.tensor.shape)
        if lead > 0 and operand.tensor.shape == (1,) * lead + source.tensor.shape:
            return source
    return operand


def _broadcast(shapes: list[tuple[Size, ...]]) -> tuple[Size, ...] | None:
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Size] = []
    for sizes in zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True):
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            return None
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def sink_reshapes(rewriter: Rewriter, step: Step) -> Step | None:
    """A pointwise step on operands that were all reshaped alike works on what they were."""
    if not is_pointwise(step) or not isinstance(step.fact, TensorFact):
        return None
    operands = list(dict.fromkeys(read_steps((step.args, step.kwargs))))
    wide = [operand for operand in operands if operand.tensor.shape != ()]
    if not wide or any(operand.target is not aten.reshape.default for operand in wide):
        return None
    sources = {operand.args[0].tensor.shape for operand in wide}
    if len(sources) > 1 or any(operand.tensor.shape != step.fact.shape for operand in wide):
        return None
    trial = {operand: operand.args[0] if operand in wide else operand for operand in operands}
    args, kwargs = map_leaves(_replace(trial), step.args), map_leaves(_replace(trial), step.kwargs)
    fact = TensorFact(sources.pop(), step.fact.dtype, step.fact.device)
    inner = rewriter.call(step.target, args, kwargs, fact)
    return reshape(rewriter, inner, step.fact.shape)
