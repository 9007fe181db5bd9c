"""Rules for steps that move no data: reshapes, copies, permutations, slices, expansions.

All of them become one of four forms (reshape, permute, slice, expand) or disappear.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from penstock.run.batched.peephole import Rewriter
from penstock.run.batched.sizes import Size
from penstock.run.batched.steps import Step, TensorFact

aten = torch.ops.aten

_SAME = frozenset(
    {
        aten.alias.default,
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
    """A cast names only what changes; a literal is cast once and for all."""
    if step.target is not aten._to_copy.default:
        return None
    if step.args[0].is_literal:
        cast = step.args[0].constant.to(device=step.tensor.device, dtype=step.tensor.dtype)
        return rewriter.literal(cast, step.fact)
    source: TensorFact = step.args[0].tensor
    kwargs: dict[str, Any] = {}
    if source.dtype != step.tensor.dtype:
        kwargs["dtype"] = step.tensor.dtype
    if source.device != step.tensor.device:
        kwargs["device"] = step.tensor.device
        if step.kwargs.get("non_blocking") and step.tensor.device.type != "cpu":
            kwargs["non_blocking"] = True
    if set(kwargs) == set(step.kwargs):
        return None
    return rewriter.call(step.target, step.args[:1], kwargs, step.fact)


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


def join_before_reshape(rewriter: Rewriter, step: Step) -> Step | None:
    """Reshaped values joined along their last dimension are the reshaped join of the values."""
    if step.target is not aten.cat.default or not isinstance(step.fact, TensorFact):
        return None
    operands: list[Step] = step.args[0]
    if [*step.args[1:]] != [len(step.fact.shape) - 1]:
        return None
    if any(operand.target is not aten.reshape.default for operand in operands):
        return None
    sources: list[Step] = [operand.args[0] for operand in operands]
    leads = {source.tensor.shape[:-1] for source in sources}
    lasts_agree = all(s.tensor.shape[-1:] == o.tensor.shape[-1:] for s, o in zip(sources, operands))
    if len(leads) > 1 or not lasts_agree:
        return None
    fact = _with_lead(step.fact, leads.pop())
    joined = rewriter.call(step.target, (sources, len(fact.shape) - 1), {}, fact)
    return reshape(rewriter, joined, step.fact.shape)


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
