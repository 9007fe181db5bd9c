"""Versions of tensors: torch counts changes in place, so that backward can tell of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from penstock.run.inputs import tensors_of


def version_of(values: torch.Tensor) -> int:
    """How often a tensor has been changed in place; tensors made in inference mode do not count."""
    return 0 if values.is_inference() else values._version


def check_version(values: torch.Tensor, version: int) -> None:
    """Raise torch's error if a tensor has been changed in place."""
    if version_of(values) != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an "
            f"inplace operation: [{values.type()} {list(values.shape)}] is at version "
            f"{values._version}; expected version {version} instead."
        )


def versions_of(column: Sequence[torch.Tensor] | torch.Tensor) -> list[int]:
    """The versions of the tensors of a column; of the whole, where it is one."""
    tensors = tensors_of(column)
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:  # some are made in inference mode
        return list(map(version_of, tensors))
