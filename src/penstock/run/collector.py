"""Python's garbage collector waits while a plan is made ready.

Planning and preparing make thousands of objects that live on, none of them in a cycle. Each few
hundred of them set the collector off, and what it finds alive brings the next look at all objects
of the process nearer, which takes longer than the plan. It waits for moments only, never while a
user's code runs; a collector that the user has switched off stays off.
"""

from __future__ import annotations

import gc
import threading

_lock = threading.Lock()


class collector_waits:
    """The collector does not run inside, on whichever thread; may be nested."""

    #: How many are inside, and whether the collector is to run when all have left.
    _inside = 0
    _runs = False

    def __enter__(self) -> None:
        cls = collector_waits
        with _lock:
            if not cls._inside:
                cls._runs = gc.isenabled()
                gc.disable()
            cls._inside += 1

    def __exit__(self, *found: object) -> None:
        cls = collector_waits
        with _lock:
            cls._inside -= 1
            if not cls._inside and cls._runs:
                gc.enable()
