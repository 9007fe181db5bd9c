"""`penstock doctor`: what is installed here, what each part gives, and whether a program runs.

Nothing is changed. The last line is a small program, run batched and in plain Python.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import penstock as ps
from penstock.run.fused.inductor import has_compiler
from penstock.run.native.compiling import cache_folder
from penstock.run.strips import library as strips

#: The oldest Python that is supported, and the oldest and the newest torch.
PYTHON, TORCH, NEWEST_TORCH = (3, 11), (2, 11), (2, 13)


class Finding(NamedTuple):
    """One line of the report."""

    name: str
    found: str
    #: What it is good for, or what to do.
    remark: str
    is_fine: bool = True


def run_doctor(console: Console | None = None) -> int:
    """Print the report; 1 if something that is needed is missing or wrong, else 0."""
    console = console or Console(soft_wrap=True)
    table = Table(box=None, pad_edge=False, show_header=False)
    findings = [*_needed(), *_devices(), *_compilers(), *_optional(), _self_check()]
    for item in findings:
        told = map(escape, (item.name, item.found, item.remark))
        table.add_row("ok" if item.is_fine else "WRONG", *told)
    console.print(table)
    return 0 if all(item.is_fine for item in findings) else 1


def _needed() -> Iterator[Finding]:
    yield Finding("penstock", ps.__version__, os.path.dirname(ps.__file__))
    yield Finding(
        "Python",
        platform.python_version(),
        f"{_dotted(PYTHON)} or newer is needed",
        sys.version_info[:2] >= PYTHON,
    )
    yield Finding(
        "torch",
        torch.__version__,
        f"{_dotted(TORCH)} to {_dotted(NEWEST_TORCH)} is needed",
        TORCH <= tuple(map(int, torch.__version__.split(".")[:2])) <= NEWEST_TORCH,
    )
    for name in ("numpy", "greenlet", "rich"):
        yield Finding(name, _version(name) or "missing", "needed", _version(name) is not None)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _devices() -> Iterator[Finding]:
    threads = torch.get_num_threads()
    yield Finding("CPU", f"{os.cpu_count()} cores", f"torch uses {threads} threads")
    for number in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(number)
        yield Finding(f"cuda:{number}", device.name, f"{device.total_memory / 2**30:.0f} GiB")
    if not torch.cuda.is_available():
        yield Finding("CUDA", "no device", "programs run on the CPU")


def _compilers() -> Iterator[Finding]:
    kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for kind in kinds:
        there = has_compiler(torch.device(kind))
        found = ("C++" if kind == "cpu" else "Triton") if there else "no compiler"
        remark = "blocks that run long are compiled" if there else "programs run uncompiled"
        yield Finding(f"compiler for {kind}", found, remark)
    obstacle = "no Numba" if _version("numba") is None else strips.obstacle()
    remark = "on a CPU, compiled launches follow each other without Python between them"
    yield Finding("launches in C++", "possible" if obstacle is None else obstacle, remark)
    yield Finding("cache", str(cache_folder()), "where compiled loops are kept: PENSTOCK_CACHE")


def _optional() -> Iterator[Finding]:
    gives = {
        "numba": "loops over scalars and planning in native code: penstock[native]",
        "cuda-bindings": "loops with conditions on a CUDA device as graphs",
        "plotly": "pages that show programs and what ran, save_html: penstock[view]",
    }
    for name, what in gives.items():
        yield Finding(name, _version(name) or "not installed", what)
    data = os.environ.get("PENSTOCK_DATA")
    yield Finding("PENSTOCK_DATA", data or "not set", "where examples and benchmarks look for data")


def _self_check() -> Finding:
    """A loop with a trip count of its own for each instance, with its gradient."""

    @ps.function
    def halved(x: torch.Tensor) -> torch.Tensor:
        return ps.while_loop(lambda x: x.abs() > 1, lambda x: x / 2, x)  # type: ignore[no-any-return]

    numbers = torch.tensor([0.5, 3.0, 100.0], requires_grad=True)
    try:
        halves = halved.map(numbers, out="stack")
        (slopes,) = torch.autograd.grad(halves.sum(), numbers)
        is_right = halves.tolist() == [0.5, 0.75, 0.78125]
        is_right = is_right and slopes.tolist() == [1, 0.25, 1 / 128]
    except Exception as error:  # whatever is wrong here is what the report is for
        return Finding("a program", "failed", f"{type(error).__name__}: {error}", is_fine=False)
    remark = "run batched, with gradients" if is_right else "its results are wrong"
    return Finding("a program", "runs" if is_right else "WRONG", remark, is_right)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
