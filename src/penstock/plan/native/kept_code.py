"""Where the compiled kernel is kept on disk; asked before any compiler is imported."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path


def cache_folder() -> Path:
    """The folder of code that was compiled from exactly these sources: Numba itself would look at
    the file of the outermost function alone.
    """
    here = Path(__file__).parent
    sources = [here / "opcodes.py", *sorted(here.glob("*kernel.py"))]
    digest = sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    chosen = os.environ.get("PENSTOCK_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(chosen) if chosen else Path(home) / "penstock") / f"planner-{digest}"


def can_keep(folder: Path) -> bool:
    """Whether code can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def is_compiled() -> bool:
    """Whether code is there, so that loading is quick; it may be another compiler's."""
    return any(cache_folder().rglob("*.nbc"))
