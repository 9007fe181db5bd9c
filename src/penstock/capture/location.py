"""Where in the user's own source a call was made, for error texts.

The innermost frame that belongs neither to this package, nor to torch, nor to what starts threads
and worker processes, is taken to be the user's line. The models of `penstock.nn` are written as
user code, and count as such.
"""

from __future__ import annotations

import concurrent.futures
import linecache
import multiprocessing
import os
import sys
import threading
from pathlib import Path
from types import FrameType

import torch

_PACKAGE = Path(__file__).parents[1]
_LIBRARIES = (torch, multiprocessing, concurrent.futures)
_LIBRARY_FOLDERS = (
    *(f"{Path(module.__file__ or '').parent}{os.sep}" for module in _LIBRARIES),
    f"{_PACKAGE}{os.sep}",
    threading.__file__,
)
_MODELS_FOLDER = f"{_PACKAGE / 'nn'}{os.sep}"


def is_library_file(name: str) -> bool:
    """Whether a file is ours, torch's or Python's own, so that its lines are never the user's."""
    return name.startswith(_LIBRARY_FOLDERS) and not name.startswith(_MODELS_FOLDER)


def user_line() -> str | None:
    """The line to blame, as `train.py:41, in decode`; None where no user code is on the stack."""
    frame = user_frame()
    if frame is None:
        return None
    return f"{_shown_path(frame.f_code.co_filename)}:{frame.f_lineno}, in {frame.f_code.co_name}"


def user_place() -> str | None:
    """`user_line`, with the source text of that line below it."""
    frame = user_frame()
    if frame is None:
        return None
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals).strip()
    return f"{user_line()}\n    {text}" if text else user_line()


def user_frame() -> FrameType | None:
    """The innermost frame of user code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_library_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _shown_path(path: str) -> str:
    """The path as the user would type it: relative where it lies below the working directory."""
    here = os.getcwd() + os.sep
    return path.removeprefix(here)
