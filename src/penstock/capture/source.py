"""The line of user code at work, as programs store it."""

from __future__ import annotations

import os
import sys
from types import FrameType

from penstock.capture.location import LIBRARY_FOLDERS
from penstock.ir.program import Source


def user_source() -> Source | None:
    """The innermost frame outside this package and torch; None where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(LIBRARY_FOLDERS):
        frame = frame.f_back
    if frame is None:
        return None
    file = frame.f_code.co_filename.removeprefix(os.getcwd() + os.sep)
    return Source(file, frame.f_lineno, frame.f_code.co_name)
