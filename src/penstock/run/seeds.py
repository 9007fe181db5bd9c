"""The seed of one call, from torch's default generator.

It is known before the call starts, but the generator moves on only if the call draws: so a program
whose random operations lie on a branch that nobody takes leaves the generator alone, in a graph as
in plain Python.
"""

from __future__ import annotations

import torch

_BOUND = 2**63 - 1


class Seed:
    """One number per call or map, however many instances and groups of them there are.

    Arguments:
        number: the seed itself, where it is known.
        advances: whether `take` moves the generator on; not where a call is only looked at.
    """

    def __init__(self, number: int | None = None, *, advances: bool = True) -> None:
        self._number = number
        self._advances = advances

    @property
    def number(self) -> int:
        """The next number of the generator when this was first asked for."""
        if self._number is None:
            self._number = _draw(torch.default_generator.clone_state())
        return self._number

    def take(self) -> None:
        """Move the generator past the seed, if that has not been done."""
        if self._advances:
            self._advances = False
            _draw(torch.default_generator)


def _draw(generator: torch.Generator) -> int:
    return int(torch.randint(_BOUND, (), generator=generator, device="cpu"))
