"""The kernel is compiled by a process of its own, so that no call waits for it.

Compiling takes half a minute on a machine that has never done it. One process at a time does it;
whoever plans looks now and then whether code has appeared on disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from time import time

from penstock.plan.native.kept_code import cache_folder, can_keep

#: Whoever compiles leaves this file.
CLAIM = "compiling"

#: A claim that is older belongs to nobody: its process was stopped.
SECONDS = 600

#: A low priority, as others have work to do.
NICE = 10

_CODE = "from penstock.plan.native.aside import compile_here; compile_here()"


#: The process that this one has started: whoever asks how it goes takes note of its end.
_started: list[subprocess.Popen[bytes]] = []


def start() -> bool:
    """Start a process that compiles; False where another one does, or code cannot be kept."""
    folder = cache_folder()
    if not sys.executable or not can_keep(folder) or not _claim(folder):
        return False
    paths = os.pathsep.join(path for path in sys.path if path)
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _CODE],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:  # no room for one more process
        _give_up(folder)
        return False
    _started.append(process)
    return True


def is_under_way() -> bool:
    """Whether some process compiles."""
    for process in _started:
        process.poll()
    return _is_claimed(cache_folder() / CLAIM)


def compile_here() -> None:
    """What that process does."""
    if hasattr(os, "nice"):
        os.nice(NICE)
    try:
        from penstock.plan.planners import load_native

        load_native()
    finally:
        _give_up(cache_folder())


def _claim(folder: Path) -> bool:
    """Whether nobody else compiles: from now on this process does."""
    claim = folder / CLAIM
    if _is_claimed(claim):
        return False
    try:
        claim.unlink(missing_ok=True)
        claim.touch(exist_ok=False)
    except OSError:
        return False
    return True


def _is_claimed(claim: Path) -> bool:
    try:
        return time() - claim.stat().st_mtime < SECONDS
    except OSError:
        return False


def _give_up(folder: Path) -> None:
    (folder / CLAIM).unlink(missing_ok=True)
