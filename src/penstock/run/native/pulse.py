"""What a kernel does between two stretches of work: take the GIL and see to signals.

Python's handlers run here, so Ctrl-C ends a loop that would not. An exception that a handler raises
is taken out of the interpreter, because compiled code cannot raise it; `raise_caught` puts it back.
Signals are seen to in the main thread only, as everywhere in Python.
"""

from __future__ import annotations

import ctypes
from typing import Any

from numba import njit, types
from numba.core.types import ExternalFunction

_ensure = ExternalFunction("PyGILState_Ensure", types.int32())
_release = ExternalFunction("PyGILState_Release", types.void(types.int32))
_check_signals = ExternalFunction("PyErr_CheckSignals", types.int32())
_fetch = ExternalFunction("PyErr_Fetch", types.void(types.voidptr, types.voidptr, types.voidptr))

_restore = ctypes.pythonapi.PyErr_Restore
_restore.argtypes = [ctypes.c_void_p] * 3
_restore.restype = None


def _pulse(report: Any) -> Any:
    state = _ensure()
    has_raised = _check_signals() != 0
    if has_raised:
        _fetch(report[0:].ctypes, report[1:].ctypes, report[2:].ctypes)
    _release(state)
    return has_raised


#: pulse(report): run handlers of signals; whether one has raised, which the first places of the
#: report then hold.
pulse: Any = njit(types.boolean(types.int64[::1]), nogil=True, cache=True, error_model="numpy")(
    _pulse
)


def raise_caught(report: Any) -> None:
    """Raise what a handler has raised during a kernel."""
    _restore(*(int(place) or None for place in report[:3]))
