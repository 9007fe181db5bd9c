"""The C++ code of this folder, compiled on the user's machine and kept on disk.

What is kept is found again by the same sources, compiler and processor. Where it cannot be had (no
compiler, a torch without a BLAS that can be called) there is one line in the log, and launches stay
with Python.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import subprocess
import sys
import tempfile
import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from penstock.plan.native.kept_code import cache_root, processor
from penstock.plan.schedule import Integers
from penstock.run.fused.form import patience
from penstock.run.fused.inductor import cpp_compiler
from penstock.run.strips.words import Words, address_of

log = logging.getLogger("penstock")

FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-std=c++17")
#: Launches of more rows for each thread run in pieces: what is computed in between stays in the
#: caches then, and takes no more memory than for a piece.
PIECE_ROWS = 512

#: What running code ends with.
DONE, OUT_OF_RANGE, FAILED = range(3)

_WORD, _PLACE = ctypes.c_int64, ctypes.c_void_p

_found: list[Library | None] = []
_finding = threading.Lock()


class Unavailable(Exception):
    """There can be no library here."""


class Library:
    """The compiled code, loaded."""

    #: Passes, through all libraries.
    _passes = itertools.count()

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The products of torch's BLAS.
        self.sgemm, self.dgemm = _products()
        self.functions = ctypes.CDLL(str(path))
        self._scratch_bytes: Any = self.functions.penstock_scratch_bytes
        self._scratch_bytes.restype = ctypes.c_int64
        self._scratch_bytes.argtypes = [ctypes.c_void_p] * 2
        #: Functions of the words that a call is told in: they count rows by block, of all launches
        #: or some of those that were measured, measure what a batch needs, and run launches.
        self.count = self._function("penstock_count", None, 1)
        self.add_rows = self._function("penstock_add_rows", None, 3)
        self.measure = self._function("penstock_measure", ctypes.c_int64, 0)
        self.forward = self._function("penstock_forward", ctypes.c_int64, 2)
        self.backward = self._function("penstock_backward", ctypes.c_int64, 2)
        #: Contracts what waits for it.
        self.collect = self._function("penstock_collect", ctypes.c_int, 2)
        self._run_code: Any = self.functions.penstock_run_code
        self._run_code.restype = ctypes.c_int
        self._run_code.argtypes = [*[_PLACE] * 7, *[_WORD] * 3]
        #: A product of two factors, of which the first lies turned.
        self.contract: Any = self.functions.penstock_contract
        self.contract.restype = None
        factor = (_PLACE, _WORD, _WORD)
        self.contract.argtypes = [_WORD, *factor, *factor, _WORD, _PLACE, _WORD, _WORD]
        #: Matrices that were packed for it are not needed any more.
        self.end_pass: Any = self.functions.penstock_end_pass
        self.end_pass.restype, self.end_pass.argtypes = None, []
        #: Whether products of many rows are as fast as those of a BLAS.
        self.is_fast = bool(self.functions.penstock_is_fast())

    def _function(self, name: str, result: Any, numbers: int) -> Any:
        """A function of words and so many numbers, or addresses."""
        function = getattr(self.functions, name)
        function.restype = result
        function.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * numbers]
        return function

    def new_words(self, rows: Integers, **others: int) -> Words:
        """What a new pass is told, in which blocks have so many rows in all."""
        threads = torch.get_num_threads()
        return Words(
            sgemm=self.sgemm,
            dgemm=self.dgemm,
            threads=threads,
            number=next(self._passes),
            piece_rows=PIECE_ROWS * threads,
            rows=address_of(rows),
            **others,
        )

    def scratch_bytes(self, words: Integers, sizes: Integers) -> int:
        """The scratch memory that code takes for such sizes."""
        found: int = self._scratch_bytes(words.ctypes.data, sizes.ctypes.data)
        return found

    def run_code(
        self,
        words: Integers,
        arguments: Integers,
        sizes: Integers,
        scratch: torch.Tensor,
        results: Integers,
        rows: int = 0,
    ) -> int:
        """Run code once: pointers to arguments, dimension 0 of each, pointers to results; in a pass
        of its own, which has so many rows.
        """
        found: int = self._run_code(
            words.ctypes.data,
            arguments.ctypes.data,
            sizes.ctypes.data,
            scratch.data_ptr(),
            results.ctypes.data,
            self.sgemm,
            self.dgemm,
            torch.get_num_threads(),
            next(self._passes),
            rows,
        )
        return found


def loaded_library() -> Library | None:
    """The library, if somebody has asked for it before."""
    return _found[0] if _found else None


def library() -> Library | None:
    """The library, which is compiled where it was not yet; None where it cannot be had."""
    if not _found:
        with _finding:
            if not _found:
                _found.append(_find())
    return _found[0]


def obstacle() -> str | None:
    """Why there can be no library here, as far as that is seen without compiling it."""
    if cpp_compiler() is None:
        return "no C++ compiler"
    try:
        _products()
    except (Unavailable, OSError, AttributeError):
        return "torch has another BLAS"
    return None


def _find() -> Library | None:
    try:
        return _loaded()
    except (Unavailable, OSError, AttributeError, subprocess.SubprocessError) as problem:
        log.info("launches are not run by C++ code: %s", problem)
        return None


def _loaded() -> Library:
    """The library; compiled once more where what is kept cannot be loaded."""
    path = _compiled()
    try:
        return Library(path)
    except OSError as problem:
        log.info("%s is compiled again: %s", path.name, problem)
        path.unlink(missing_ok=True)
        return Library(_compiled())


def _products() -> tuple[int, int]:
    """The addresses of the functions that multiply matrices in torch's own library: other builds
    of torch are left alone.
    """
    torch_library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    single, double = (
        ctypes.cast(getattr(torch_library, name), ctypes.c_void_p).value
        for name in ("sgemm_", "dgemm_")
    )
    if single is None or double is None:
        raise Unavailable("torch's library has no sgemm_ or dgemm_")
    return single, double


# ---- compiling -----------------------------------------------------------------------------------


def _compiled() -> Path:
    """The file of the library, which is there now."""
    compiler = cpp_compiler()
    if compiler is None or sys.byteorder != "little":
        raise Unavailable("there is no C++ compiler" if compiler is None else "byte order")
    here = Path(__file__).parent
    path = cache_root() / f"strips-{_digest(here, Path(compiler))}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _compile(compiler, here / "strips.cpp", path)
    return path


def _digest(folder: Path, compiler: Path) -> str:
    """Tells sources, compilers, flags and processors apart."""
    sources = sorted([*folder.glob("*.cpp"), *folder.glob("*.hpp")])
    state = compiler.resolve().stat()
    facts = (FLAGS, str(compiler.resolve()), state.st_size, state.st_mtime_ns, processor())
    told = b"".join(path.read_bytes() for path in sources) + repr(facts).encode()
    return sha256(told).hexdigest()[:16]


def _compile(compiler: str, source: Path, path: Path) -> None:
    """Processes that compile at once each write a file of their own; the last one stays."""
    handle, name = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(handle)
    try:
        command = [compiler, *FLAGS, str(source), "-o", name]
        with patience("native code for launches"):
            done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            told = done.stderr.decode(errors="replace").strip()
            raise Unavailable(f"{compiler} failed: {told[:1000]}")
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
