"""Stand-ins for the compiler of launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import torch

import penstock as ps
from penstock.run.fused import form, launch_code


def as_it_is(function, examples: Sequence[torch.Tensor], free, slots):  # type: ignore[no-untyped-def]
    """A compiler that gives back what it is given."""
    return lambda tensors: function(*tensors)


@contextmanager
def fused_without_compiler() -> Iterator[None]:
    """Launches inside, and backward passes, run as whole launches do, but for the compiler."""
    with (
        ps.set_fusion("always"),
        patch.object(launch_code, "compile_function", as_it_is),
        patch.object(form, "has_compiler", lambda device: True),
    ):
        yield
