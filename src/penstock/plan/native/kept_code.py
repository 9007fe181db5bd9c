"""Where the compiled kernel is kept on disk; asked before any compiler is imported."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def cache_folder() -> Path:
    """The folder of code that was compiled from exactly these sources: Numba itself would look at
    the file of the outermost function alone.
    """
    here = Path(__file__).parent
    sources = [here / "compiler.py", here / "opcodes.py", *sorted(here.glob("*kernel.py"))]
    digest = sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    return cache_root() / f"planner-{digest}"


def cache_root() -> Path:
    """The folder of all that is kept."""
    chosen = os.environ.get("PENSTOCK_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(home) / "penstock"


def can_keep(folder: Path) -> bool:
    """Whether code can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def is_compiled() -> bool:
    """Whether all code is there that this interpreter can load on this machine."""
    return _mark().exists()


def note_compiled() -> None:
    """All code has been compiled, or was found."""
    if can_keep(cache_folder()):
        _mark().touch()


def _mark() -> Path:
    """A file that says so. Code is kept for one place of the sources, one Python, one compiler and
    one kind of processor.
    """
    try:
        compiler = version("numba")
    except PackageNotFoundError:
        compiler = ""
    what = (str(Path(__file__).parent), sys.version, compiler, processor())
    return cache_folder() / f"ready-{sha256(repr(what).encode()).hexdigest()[:16]}"


@cache
def processor() -> str:
    """The processor as exactly as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    told = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return "\n".join(sorted(told))
