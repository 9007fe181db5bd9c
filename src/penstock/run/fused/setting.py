"""Whether launches are compiled: a setting of the process, since backward passes run on threads of
torch's own.
"""

from __future__ import annotations

import os

from penstock.errors import ArgumentError, report

MODES = ("auto", "always", "never")


class Fusion:
    """The setting."""

    #: The first one comes from PENSTOCK_FUSION.
    mode = "auto"


def choose_fusion(mode: str) -> None:
    """Change the setting."""
    if mode not in MODES:
        raise ArgumentError(
            report(
                "set_fusion: there is no such mode.",
                facts=[("given", repr(mode)), ("modes", ", ".join(map(repr, MODES)))],
                todo='Use "auto" unless you want all launches compiled at once, or none.',
            )
        )
    Fusion.mode = mode


choose_fusion(os.environ.get("PENSTOCK_FUSION", "auto"))
