"""Looks into bounded runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.autodiff.bounded.runs import Bounded


@contextmanager
def bounded_runs() -> Iterator[list[Bounded]]:
    """The bounded runs that are made inside; they live as long as the list."""
    made: list[Bounded] = []
    original = Bounded.__init__

    def init(self: Bounded, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bounded, "__init__", init)
        yield made
