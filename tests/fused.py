"""Stand-ins for the compiler of launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import torch

import penstock as ps
from penstock.plan.limits import limits
from penstock.run.fused import form, launch_code
from penstock.run.templates import choice


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
        patch.object(form, "note_compiled", lambda mark: None),
    ):
        yield


@contextmanager
def poured_without_graphs() -> Iterator[None]:
    """Fresh plans inside are poured into templates, which are run anew instead of replayed; no plan
    of another way serves.
    """
    with (
        fused_without_compiler(),
        limits(admitted_rows=(1 << 14) - 3),
        patch.object(choice, "has_graphs", lambda device: True),
        patch.object(choice, "SEEN", 0),
    ):
        yield
