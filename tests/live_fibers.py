"""Fibers that have begun and not ended: what tests that nothing is left look for."""

from __future__ import annotations

import gc

from greenlet import greenlet


def live_fibers() -> list[greenlet]:
    """Those of threads themselves are left out: greenlet drops them some time after the thread."""
    gc.collect()
    return [
        found
        for found in gc.get_objects()
        if issubclass(type(found), greenlet) and found and found.parent is not None
    ]
