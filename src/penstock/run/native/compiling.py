"""Kernels compiled by Numba, once each: by their text in memory, and on disk across processes.

The text is written to a file of its own under the folder that `PENSTOCK_CACHE` names, because Numba
keeps compiled code beside the file it comes from. Where nothing can be written, kernels are
compiled in every process.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

from penstock.run.native.kernels import Kernel, Parameter
from penstock.run.recording import building

log = logging.getLogger("penstock")

#: Compiled kernels kept in memory.
MOST_KERNELS = 1024

_HEADER = '''\
"""Compiled for a loop of Penstock; can be deleted."""

from math import (
    acos, asin, atan, cos, cosh, erf, exp, expm1, inf, log, log1p, log10, nan, sin, sinh, sqrt, tan,
    tanh,
)

from numba import njit, types
from numpy import bool_, ceil, float32, float64, floor, int32, int64, log2, rint, trunc

from penstock.run.native.pulse import pulse
'''


def has_numba() -> bool:
    """Whether there is a compiler."""
    return importlib.util.find_spec("numba") is not None


def source_of(kernel: Kernel) -> str:
    """The module that holds a kernel."""
    types = ", ".join(_type_of(parameter) for parameter in kernel.parameters)
    names = ", ".join(parameter.name for parameter in kernel.parameters)
    decorator = f'@njit(types.int64({types}), nogil=True, cache=CACHE, error_model="numpy")'
    function = "\n".join([decorator, f"def kernel({names}):", *kernel.lines])
    return f"{_HEADER}\nPULSE = {kernel.pulse}\n\n\n{function}\n"


def _type_of(parameter: Parameter) -> str:
    if parameter.dtype is None:
        return "types.int64"
    return f"types.{'boolean' if parameter.dtype == 'bool' else parameter.dtype}[::1]"


@building()
def compile_kernel(kernel: Kernel) -> Callable[..., int]:
    """The function that a kernel's text stands for."""
    return _compiled(source_of(kernel))


@lru_cache(maxsize=MOST_KERNELS)
def _compiled(source: str) -> Callable[..., int]:
    began = perf_counter()
    module = _run_module(source)
    seconds = perf_counter() - began
    if seconds > 1:
        log.info("a loop was compiled to native code in %.1f s", seconds)
    function: Callable[..., int] = module.kernel
    return function


def _run_module(source: str) -> Any:
    """The module, under a name by which Numba finds it again in other processes."""
    path = _write(source)
    filename = str(path) if path is not None else "<loop>"
    name = f"penstock_loop_{hashlib.sha256(source.encode()).hexdigest()[:32]}"
    sys.modules[name] = module = ModuleType(name)
    vars(module).update(__file__=filename, CACHE=path is not None)
    exec(compile(source, filename, "exec"), vars(module))
    return module


def _write(source: str) -> Path | None:
    """The file of a text, written unless it is there; None where it cannot be."""
    import numba

    key = f"{numba.__version__} {sys.version_info[:2]} {source}"
    folder = cache_folder()
    path = folder / f"loop_{hashlib.sha256(key.encode()).hexdigest()[:32]}.py"
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False) as file:
                file.write(source)
            os.replace(file.name, path)
    except OSError as error:
        log.debug("native loops are not kept on disk: %s", error)
        return None
    return path


def cache_folder() -> Path:
    """Where compiled loops are kept."""
    chosen = os.environ.get("PENSTOCK_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(chosen) if chosen else Path(home) / "penstock") / "native"
