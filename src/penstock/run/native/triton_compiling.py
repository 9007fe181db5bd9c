"""Kernels compiled by Triton, once each: by their text in memory, and on disk by Triton itself.

Arithmetic is kept as it is written: no fused multiply-add, which torch's single operations do not
have. Kernels are not specialised on where their arguments lie.
"""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from time import perf_counter
from typing import Any

import torch

from penstock.run.native.kernels import Kernel
from penstock.run.recording import building

log = logging.getLogger("penstock")

#: Compiled kernels kept in memory.
MOST_KERNELS = 1024

#: A row is one program of one warp.
OPTIONS = {"num_warps": 1, "enable_fp_fusion": False}

_HEADER = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def floor_divide(left, right):
    quotient = left // right
    is_off = (left % right != 0) & ((left < 0) != (right < 0))
    return tl.where(is_off, quotient - 1, quotient)


@triton.jit
def floor_remainder(left, right):
    rest = left % right
    is_off = (rest != 0) & ((rest < 0) != (right < 0))
    return tl.where(is_off, rest + right, rest)
"""

#: Runs a kernel for so many rows: launch(rows, arguments).
Launch = Callable[[int, Sequence[torch.Tensor]], None]


def has_triton() -> bool:
    """Whether there is a compiler."""
    return importlib.util.find_spec("triton") is not None


def function_text(kernel: Kernel) -> str:
    """A kernel as a function."""
    names = ", ".join(parameter.name for parameter in kernel.parameters)
    return "\n".join([f"def kernel({names}):", *kernel.lines])


def source_of(kernel: Kernel) -> str:
    """The module that holds a kernel."""
    names = ", ".join(repr(parameter.name) for parameter in kernel.parameters)
    decorator = f"@triton.jit(do_not_specialize=[{names}])"
    pulse = f"PULSE = tl.constexpr({kernel.pulse})"
    return f"{_HEADER}\n\n{pulse}\n\n\n{decorator}\n{function_text(kernel)}\n"


@building()
def compile_kernel(kernel: Kernel, device: torch.device) -> Launch:
    """A kernel, compiled for a device; raises what Triton raises."""
    dtypes = tuple(str(parameter.dtype) for parameter in kernel.parameters)
    with torch.cuda.device(device):
        function = _compiled(source_of(kernel), dtypes, torch.cuda.get_device_capability(device))

    def launch(rows: int, arguments: Sequence[torch.Tensor]) -> None:
        with torch.cuda.device(device):
            function[(rows,)](*arguments, **OPTIONS)

    return launch


@lru_cache(maxsize=MOST_KERNELS)
def _compiled(source: str, dtypes: tuple[str, ...], capability: tuple[int, int]) -> Any:
    began = perf_counter()
    function = load_module(source)["kernel"]
    function.warmup(*(getattr(torch, dtype) for dtype in dtypes), grid=(1,), **OPTIONS)
    seconds = perf_counter() - began
    if seconds > 1:
        log.info("a loop was compiled for a CUDA device in %.1f s", seconds)
    return function


def load_module(source: str) -> dict[str, Any]:
    """What a text defines; Triton finds the text again by the name of its file."""
    name = f"penstock_loop_{hashlib.sha256(source.encode()).hexdigest()[:32]}"
    filename = f"<{name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    module: dict[str, Any] = {"__name__": name}
    exec(compile(source, filename, "exec"), module)
    return module
