"""The line of user code at work, as programs store it."""

from __future__ import annotations

import os
import sys
from types import FrameType

from penstock.capture.location import is_library_file
from penstock.ir.program import Source


def user_source() -> Source | None:
    """The innermost frame outside this package and torch; None where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_library_file(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else _source(frame, frame.f_lineno)


def raising_source(error: BaseException) -> Source | None:
    """The outermost frame outside this package and torch that an exception came through."""
    trace = error.__traceback__
    while trace is not None and is_library_file(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return None if trace is None else _source(trace.tb_frame, trace.tb_lineno)


def _source(frame: FrameType, line: int) -> Source:
    file = frame.f_code.co_filename.removeprefix(os.getcwd() + os.sep)
    return Source(file, line, frame.f_code.co_name)
