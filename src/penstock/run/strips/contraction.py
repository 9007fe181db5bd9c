"""Weight gradients by native code: products of factors of many rows, the first of which lies
turned, added to what is known of them.
"""

from __future__ import annotations

import torch

from penstock.run.strips.library import Library, loaded_library

#: The bytes of a row of the result from which on native code multiplies it: those of a vector.
LEAST_BYTES = 64


def turned_product(
    first: torch.Tensor, second: torch.Tensor, known: torch.Tensor | None
) -> torch.Tensor | None:
    """`first.T @ second`, added to what is known of it, if anything is; None where it is left to
    torch.
    """
    found = loaded_library()
    if found is None or not found.is_fast or torch.is_grad_enabled():
        return None
    if not (_is_plain(first) and _is_plain(second)) or first.dtype != second.dtype:
        return None
    shape = (first.shape[1], second.shape[1])
    if 0 in first.shape or shape[1] * second.element_size() < LEAST_BYTES:
        return None
    if known is None:
        out = torch.empty(shape, dtype=first.dtype, device="cpu")
    elif _is_plain(known) and known.is_contiguous() and known.dtype == first.dtype:
        out = known
    else:
        return None
    _contract(found, first, second, out, is_added=known is not None)
    return out


def _is_plain(values: torch.Tensor) -> bool:
    """Whether the memory of a tensor holds a matrix as native code reads it."""
    return (
        type(values) is torch.Tensor
        and values.device.type == "cpu"
        and values.dtype in (torch.float32, torch.float64)
        and values.dim() == 2
        and values.stride(1) == 1
        and values.stride(0) >= values.shape[1]
        and not values.is_neg()
    )


def _contract(
    found: Library, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor, *, is_added: bool
) -> None:
    rows, columns = first.shape
    found.contract(
        first.element_size(),
        first.data_ptr(),
        first.stride(0),
        columns,
        second.data_ptr(),
        second.stride(0),
        second.shape[1],
        rows,
        out.data_ptr(),
        is_added,
        torch.get_num_threads(),
    )
