"""Devices: where blocks run. A device is an in-order queue of launches, in one process of several.

A name is `cpu:1` or `cuda:0` (a queue), `rank:1` (a process), or both, as in `rank:1/cuda:0`. What
a user writes may leave one of the two open; a device that blocks run on has both.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.errors import ArgumentError, report

_NAME = re.compile(r"(?:rank:(\d+))?(/)?(?:(cpu|cuda)(?::(\d+))?)?")


class Device(NamedTuple):
    """The process and the queue that a block runs on; None is left open."""

    rank: int | None = None
    name: str | None = None

    def inside(self, outer: Device | None) -> Device:
        """This device, where it is open as the one around it says."""
        if outer is None:
            return self
        return Device(
            outer.rank if self.rank is None else self.rank,
            outer.name if self.name is None else self.name,
        )

    @property
    def kind(self) -> str:
        """`cpu` or `cuda`."""
        return (self.name or "cpu").partition(":")[0]

    @property
    def order(self) -> tuple[int, str, int]:
        """Devices are numbered in this order."""
        _, _, number = (self.name or "cpu:0").partition(":")
        return self.rank or 0, self.kind, int(number)

    def __str__(self) -> str:
        rank = f"rank:{self.rank}" if self.rank or self.name is None else ""
        return "/".join(part for part in (rank, self.name) if part)


#: Where blocks run of which nobody says anything else.
HOME = Device(0, "cpu:0")


def read_device(text: object) -> Device:
    """The device of a name, as a user writes it."""
    found = _NAME.fullmatch(text) if isinstance(text, str) else None
    if found is not None:
        rank, slash, kind, number = found.groups()
        if (rank or kind) and bool(slash) == bool(rank and kind):
            name = None if kind is None else f"{kind}:{number or 0}"
            return Device(None if rank is None else int(rank), name)
    raise ArgumentError(
        report(
            "device: there is no device of that name.",
            facts=[
                ("given", repr(text)),
                ("names", "'cpu:1', 'cuda:0', 'rank:1', 'rank:1/cuda:0'"),
            ],
            todo="Name a queue of this process, a process by its rank, or a queue of a process.",
        )
    )
