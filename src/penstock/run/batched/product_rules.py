"""Rules for matrix products.

A product plus a bias is one `addmm`; a product with a transposed weight is one `linear`; a batch of
products with one repeated matrix is one product; in a batch, vectors stand on the left, where torch
is many times as fast on a CPU; and a sum of outer products is one product.
"""

from __future__ import annotations

import torch

from penstock.run.batched.peephole import Rewriter
from penstock.run.batched.shape_rules import reshape
from penstock.run.batched.simplify import simplify_shapes
from penstock.run.batched.sizes import Size, multiply
from penstock.run.batched.steps import Step, TensorFact

aten = torch.ops.aten


def share_weights(rewriter: Rewriter, step: Step) -> Step | None:
    """A batched product with one expanded matrix is one plain product of all rows."""
    if step.target is not aten.bmm.default:
        return simplify_shapes(rewriter, step)
    left, right = step.args
    shared = _expanded(right)
    if shared is None:
        return None
    rows, inner = multiply(*left.tensor.shape[:2]), left.tensor.shape[2]
    weight = reshape(rewriter, shared, right.tensor.shape[1:])
    fact = TensorFact((rows, right.tensor.shape[2]), step.tensor.dtype, step.tensor.device)
    flat = reshape(rewriter, left, (rows, inner))
    return reshape(
        rewriter, rewriter.call(aten.mm.default, (flat, weight), {}, fact), step.tensor.shape
    )


def _expanded(batch: Step) -> Step | None:
    """The one matrix that a batch of matrices repeats, where it does."""
    expansion: Step = batch.args[0] if batch.target is aten.reshape.default else batch
    if expansion.target is not aten.expand.default:
        return None
    matrix: Step = expansion.args[0]
    wide = _wide(expansion.tensor.shape)
    repeats = wide == _wide(batch.tensor.shape) and wide[1:] == _wide(matrix.tensor.shape)
    return matrix if repeats and len(wide) == 3 else None


def _wide(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    return tuple(size for size in shape if size != 1)


def turn_products(rewriter: Rewriter, step: Step) -> Step | None:
    """The transpose of `a @ b.T` is `b @ a.T`; rows then come first in memory, too."""
    product = step.args[0] if step.target is aten.permute.default else None
    if product is None or product.target is not aten.mm.default or step.args[1] != [1, 0]:
        return simplify_shapes(rewriter, step)
    left, right = product.args
    if right.target is not aten.permute.default or not rewriter.used_once(product):
        return None
    turned = TensorFact(left.tensor.shape[::-1], left.tensor.dtype, left.tensor.device)
    weight = rewriter.call(aten.permute.default, (left, [1, 0]), {}, turned)
    return rewriter.call(aten.mm.default, (right.args[0], weight), {}, step.fact)


def turn_columns(rewriter: Rewriter, step: Step) -> Step | None:
    """A batch of matrices times columns is a batch of rows times transposed matrices."""
    if step.target is aten.permute.default:
        return _turned_outer(rewriter, step) or simplify_shapes(rewriter, step)
    if step.target is not aten.bmm.default or step.args[1].tensor.shape[2] != 1:
        return simplify_shapes(rewriter, step)
    matrix, column = step.args
    rows, height, width = matrix.tensor.shape
    if height == 1:
        return None
    kind, device = step.tensor.dtype, step.tensor.device
    turned = TensorFact((rows, width, height), kind, device)
    transposed = rewriter.call(aten.permute.default, (matrix, [0, 2, 1]), {}, turned)
    row = reshape(rewriter, column, (rows, 1, width))
    fact = TensorFact((rows, 1, height), kind, device)
    made = rewriter.call(aten.bmm.default, (row, transposed), {}, fact)
    return reshape(rewriter, made, step.tensor.shape)


def _turned_outer(rewriter: Rewriter, step: Step) -> Step | None:
    """The transpose of an outer product is the outer product the other way round."""
    product, order = step.args
    if order != [0, 2, 1] or not _is_outer(product) or not rewriter.used_once(product):
        return None
    rows, height, width = step.tensor.shape
    left = reshape(rewriter, product.args[1], (rows, height, 1))
    right = reshape(rewriter, product.args[0], (rows, 1, width))
    return rewriter.call(aten.bmm.default, (left, right), {}, step.fact)


def join_outer_products(rewriter: Rewriter, step: Step) -> Step | None:
    """The sum of two batches of outer products is one batch of products of two columns with two
    rows.
    """
    if step.target is not aten.add.Tensor or len(step.args) != 2 or step.kwargs:
        return simplify_shapes(rewriter, step)
    first, second = step.args
    for summand in (first, second):
        if not isinstance(summand, Step) or not _is_outer(summand) or summand.fact != step.fact:
            return simplify_shapes(rewriter, step)
        if not rewriter.used_once(summand):
            return None
    factors = [_beside(rewriter, first.args[k], second.args[k], 2 - k) for k in (0, 1)]
    return rewriter.call(aten.bmm.default, tuple(factors), {}, step.fact)


def _is_outer(step: Step) -> bool:
    return step.target is aten.bmm.default and step.args[0].tensor.shape[2] == 1


def _beside(rewriter: Rewriter, first: Step, second: Step, dimension: int) -> Step:
    shape = list(first.tensor.shape)
    shape[dimension] = 2
    fact = TensorFact(tuple(shape), first.tensor.dtype, first.tensor.device)
    return rewriter.call(aten.cat.default, ([first, second], dimension), {}, fact)


def fuse_bias(rewriter: Rewriter, step: Step) -> Step | None:
    """`reshape(a @ b) + bias` is `reshape(addmm(bias, a, b))` where it is the only reader."""
    if step.target is not aten.add.Tensor or len(step.args) != 2 or step.kwargs:
        return simplify_shapes(rewriter, step)
    for summand, bias in (step.args, step.args[::-1]):
        if isinstance(summand, Step) and isinstance(bias, Step):
            fused = _with_bias(rewriter, step, summand, bias)
            if fused is not None:
                return fused
    return simplify_shapes(rewriter, step)


def _with_bias(rewriter: Rewriter, step: Step, summand: Step, bias: Step) -> Step | None:
    product = summand.args[0] if summand.target is aten.reshape.default else summand
    if product.target is not aten.mm.default:
        return None
    if not (rewriter.used_once(summand) and rewriter.used_once(product)):
        return None
    columns = product.tensor.shape[-1:]
    facts_agree = step.fact == summand.fact and bias.tensor.dtype == product.tensor.dtype
    if not facts_agree or bias.tensor.shape != columns or summand.tensor.shape[-1:] != columns:
        return None
    fused = rewriter.call(aten.addmm.default, (bias, *product.args), {}, product.fact)
    return reshape(rewriter, fused, step.tensor.shape)


def use_linear(rewriter: Rewriter, step: Step) -> Step | None:
    """A product with a transposed matrix is what `linear` computes, without a step for the
    transposition.
    """
    if step.kwargs:
        return None
    if step.target is aten.mm.default:
        bias, (rows, weight) = (), step.args
    elif step.target is aten.addmm.default and len(step.args[0].tensor.shape) == 1:
        bias, (rows, weight) = step.args[:1], step.args[1:]
    else:
        return None
    if weight.target is not aten.permute.default:
        return None
    return rewriter.call(aten.linear.default, (rows, weight.args[0], *bias), {}, step.fact)
