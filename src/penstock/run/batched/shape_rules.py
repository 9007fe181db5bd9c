"""Rules for steps that move no data: reshapes, copies, permutations, slices, expansions.

All of them become one of four forms (reshape, permute, slice, expand) or disappear.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from penstock.run.batched.peephole import Rewriter, first_of
from penstock.run.batched.sizes import Size
from penstock.run.batched.steps import Step, TensorFact, map_leaves, read_steps

aten = torch.ops.aten

_SAME = frozenset(
    {
        aten.alias.default,
        aten.detach.default,
        aten.clone.default,
        aten.lift_fresh.default,
        aten.lift_fresh_copy.default,
        aten._to_copy.default,
        aten.expand.default,
        aten.contiguous.default,
    }
)
_SPLITS = frozenset({aten.split.Tensor, aten.unsafe_split.Tensor, aten.split_with_sizes.default})
_RESHAPES = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten._reshape_alias.default,
        aten.unsqueeze.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.squeeze_.default,
        aten.squeeze_.dim,
        aten.squeeze_.dims,
    }
)


def reshape(rewriter: Rewriter, source: Step, shape: tuple[Size, ...]) -> Step:
    """`source` in another shape; reshapes of reshapes collapse."""
    while source.target is aten.reshape.default:
        source = source.args[0]
    if source.tensor.shape == shape:
        return source
    fact = TensorFact(shape, source.tensor.dtype, source.tensor.device)
    return rewriter.call(aten.reshape.default, (source, list(shape)), {}, fact)


def drop_copies(rewriter: Rewriter, step: Step) -> Step | None:
    """Copies, casts to the same dtype and expansions to the same shape are the value itself."""
    if step.target not in _SAME:
        return None
    source = step.args[0]
    return source if source.fact == step.fact else None


def drop_units(rewriter: Rewriter, step: Step) -> Step | None:
    """A product with the number 1, and a sum or mean over dimensions of size 1, change nothing."""
    if step.target in (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar):
        source, factor = step.args[:2]
        is_one = isinstance(factor, (int, float)) and factor == 1
        return source if is_one and isinstance(source, Step) and source.fact == step.fact else None
    if step.target in (aten.sum.dim_IntList, aten.mean.dim) and step.args[1]:
        source = step.args[0]
        single = all(source.tensor.shape[dimension] == 1 for dimension in step.args[1])
        if single and source.tensor.dtype == step.tensor.dtype:
            return reshape(rewriter, source, step.tensor.shape)
    return None


def plain_casts(rewriter: Rewriter, step: Step) -> Step | None:
    """A cast names only what changes."""
    if step.target is not aten._to_copy.default:
        return None
    source: TensorFact = step.args[0].tensor
    kwargs: dict[str, Any] = {}
    if source.dtype != step.tensor.dtype:
        kwargs["dtype"] = step.tensor.dtype
    if source.device != step.tensor.device:
        kwargs["device"] = step.tensor.device
    if set(kwargs) == set(step.kwargs):
        return None
    return rewriter.call(step.target, step.args[:1], kwargs, step.fact)


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


def split_before_reshape(rewriter: Rewriter, step: Step) -> Step | None:
    """Pieces of a reshaped value along its last dimension are reshaped pieces of the value."""
    if step.target is not operator.getitem or step.args[0].target not in _SPLITS:
        return None
    split: Step = step.args[0]
    whole, pieces, *dimension = split.args
    if whole.target is not aten.reshape.default or [*dimension] != [len(whole.tensor.shape) - 1]:
        return None
    source: Step = whole.args[0]
    if not source.tensor.shape or source.tensor.shape[-1] != whole.tensor.shape[-1]:
        return None
    lead = source.tensor.shape[:-1]
    assert isinstance(split.fact, tuple)
    facts = tuple(_with_lead(fact, lead) for fact in split.fact)
    inner = rewriter.call(split.target, (source, pieces, len(lead)), {}, facts)
    piece = rewriter.call(operator.getitem, (inner, step.args[1]), {}, facts[step.args[1]])
    return reshape(rewriter, piece, step.tensor.shape)


def _with_lead(fact: Any, lead: tuple[Size, ...]) -> TensorFact:
    return TensorFact((*lead, fact.shape[-1]), fact.dtype, fact.device)


def join_reshapes(rewriter: Rewriter, step: Step) -> Step | None:
    """Everything that only renames positions is one reshape."""
    if step.target not in _RESHAPES:
        return None
    if step.target is aten.reshape.default and step.args[0].target is not aten.reshape.default:
        return step.args[0] if step.args[0].tensor.shape == step.tensor.shape else None
    return reshape(rewriter, step.args[0], step.tensor.shape)


def join_permutes(rewriter: Rewriter, step: Step) -> Step | None:
    """`t` and `transpose` are permutes; one that only moves dimensions of size 1 is a reshape."""
    order = _permutation(step)
    if order is None:
        return None
    source: Step = step.args[0]
    while source.target is aten.permute.default:
        order = [source.args[1][dimension] for dimension in order]
        source = source.args[0]
    wide = [dimension for dimension in order if source.tensor.shape[dimension] != 1]
    if wide == sorted(wide):
        return reshape(rewriter, source, step.tensor.shape)
    if step.target is aten.permute.default and source is step.args[0] and order == step.args[1]:
        return None
    return rewriter.call(aten.permute.default, (source, order), {}, step.fact)


def _permutation(step: Step) -> list[int] | None:
    if step.target not in (aten.t.default, aten.transpose.int, aten.permute.default):
        return None
    rank = len(step.tensor.shape)
    order = list(range(rank))
    if step.target is aten.permute.default:
        return [dimension % rank for dimension in step.args[1]]
    if rank >= 2:
        first, second = step.args[1:3] if step.target is aten.transpose.int else (0, 1)
        order[first], order[second] = order[second], order[first]
    return order


def drop_slices(rewriter: Rewriter, step: Step) -> Step | None:
    """A slice of everything is the value itself; to select the only element is to reshape."""
    if step.target is aten.slice.Tensor:
        keeps_all = len(step.args) < 5 and step.args[0].fact == step.fact
        return step.args[0] if keeps_all else None
    if step.target is aten.select.int and step.args[0].tensor.shape[step.args[1]] == 1:
        return reshape(rewriter, step.args[0], step.tensor.shape)
    return None


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


simplify_shapes = first_of(
    drop_copies,
    plain_casts,
    drop_units,
    plain_numbers,
    join_reshapes,
    join_permutes,
    drop_slices,
    split_before_reshape,
    broadcast_plainly,
    sink_reshapes,
)
