"""Matrix products of many rows on CPU.

torch hands float32 products to the BLAS it was built with; for tall products oneDNN, which torch
has in it too, is faster: the two differ in the last bits only. Small products stay with the BLAS,
whose calls cost less. The choice depends on sizes alone, so that the same call always gives the
same bits.
"""

from __future__ import annotations

import torch

from penstock.run.batched.steps import TensorFact

#: The rows, and the multiplications, from which on oneDNN is faster than the BLAS.
LEAST_ROWS, LEAST_WORK = 48, 1 << 22
#: The multiplications of a weight gradient.
LEAST_TURNED_WORK = 1 << 20

_onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
_IS_BUILT = _onednn is not None and torch._C._has_mkldnn


def linear(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`rows @ weight.T + bias`."""
    if _is_for_onednn(rows, weight):
        plain = None if bias is None else bias.contiguous()  # oneDNN looks at no strides here
        return _onednn(rows, _without_gaps(weight), plain, "none", [], "")  # type: ignore[misc, no-any-return]
    return torch.nn.functional.linear(rows, weight, bias)


def _without_gaps(weight: torch.Tensor) -> torch.Tensor:
    """The weight, as it is or turned; oneDNN takes a thousand times as long where it has gaps."""
    is_dense = weight.is_contiguous() or weight.t().is_contiguous()
    return weight if is_dense else weight.contiguous()


def mm(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """`rows @ matrix`."""
    if _is_for_onednn(rows, matrix):
        return linear(rows, matrix.t())
    return torch.mm(rows, matrix)


def addmm(bias: torch.Tensor, rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """`rows @ matrix + bias`, for a bias that is the same for all rows."""
    if bias.dim() == 1 and _is_for_onednn(rows, matrix):
        return linear(rows, matrix.t(), bias)
    return torch.addmm(bias, rows, matrix)


def turned_product(
    first: torch.Tensor, second: torch.Tensor, known: torch.Tensor | None = None
) -> torch.Tensor:
    """`first.T @ second`, added to what is known of it, if anything is."""
    left = first.t()
    is_plain = _IS_BUILT and left.is_cpu and left.dtype == torch.float32
    if is_plain and _is_for_onednn(left, second, LEAST_TURNED_WORK):
        made = linear(left, second.t())
        return made if known is None else known.add_(made)
    return torch.mm(left, second) if known is None else known.addmm_(left, second)


def most_small_rows(inner: int, columns: int) -> int:
    """The rows up to which a product with such a matrix stays with the BLAS."""
    return max(LEAST_ROWS, -(-LEAST_WORK // max(1, inner * columns))) - 1


def has_choice(fact: TensorFact) -> bool:
    """Whether there are two ways to multiply such values."""
    is_plain = fact.dtype == torch.float32 and fact.device.type == "cpu" and len(fact.shape) == 2
    return _IS_BUILT and is_plain


def _is_for_onednn(rows: torch.Tensor, matrix: torch.Tensor, least_work: int = LEAST_WORK) -> bool:
    """oneDNN's product has no derivative and is not traced: neither under autograd nor for a
    tensor that stands for others.
    """
    count = rows.shape[0]
    return (
        count >= LEAST_ROWS
        and count * matrix.numel() >= least_work
        and type(rows) is torch.Tensor
        and not torch.is_grad_enabled()
        and bool(torch.backends.mkldnn.enabled)
    )
