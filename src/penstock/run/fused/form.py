"""A half of a block, compiled at its first use.

Compiled code is used where it was measured to be faster. A person at a terminal is told of
compilations that take long; a missing compiler is worth one line.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

import torch

from penstock.run.fused.inductor import CannotCompile, Compiled, has_compiler
from penstock.run.fused.known import note_compiled
from penstock.run.fused.launch_code import LaunchCode
from penstock.run.fused.setting import Fusion
from penstock.run.recording import building

log = logging.getLogger("penstock")

#: How many times as fast compiled code must be to be used, as measured when it is made.
LEAST_GAIN = 1.03
#: Seconds after which a person is told what takes so long.
PATIENCE = 1.0

#: Types of devices for whose missing compiler there was a notice.
_noticed: set[str] = set()
_compiling = threading.Lock()


class FusedForm:
    """The code of a launch that is to be run compiled."""

    def __init__(self, code: LaunchCode, name: str, mark: str) -> None:
        self.code = code
        self.name = name
        #: What later processes know it by.
        self.mark = mark
        self.compiled: Compiled | None = None
        #: Whether what it gives is in memory of its own, which nobody else knows of.
        self.gives_own = False
        #: The same for native code, made and looked up by `penstock.run.strips`; False where there
        #: is none.
        self.native: Any = None
        #: Whether it was tried to compile it.
        self.is_tried = False

    def ready(self, rows: int) -> Compiled | None:
        """The compiled code; None where there is none that is worth it."""
        if not self.is_tried:
            with _compiling:
                if not self.is_tried:
                    self._compile(rows)
                    self.is_tried = True
        return self.compiled

    def _compile(self, rows: int) -> None:
        if not _can_compile(self.code.device):
            return
        with building(), patience(self.name):
            try:
                compiled = self.code.compile()
                gain = inf if Fusion.mode == "always" else self.code.gain(compiled, rows)
            except (CannotCompile, torch.OutOfMemoryError) as problem:
                log.info("%s runs uncompiled: %s", self.name, problem)
                return
        note_compiled(self.mark)
        log.info("%s compiled: %.2f times as fast for %d rows", self.name, gain, rows)
        if gain >= LEAST_GAIN:
            self.gives_own = self.code.gives_own(compiled)
            self.compiled = compiled


def _can_compile(device: torch.device) -> bool:
    """Whether there is a compiler; says so once where there is none."""
    if has_compiler(device):
        return True
    if device.type not in _noticed:
        _noticed.add(device.type)
        log.warning("no compiler for %s code was found: blocks run uncompiled", device.type)
    return False


@contextmanager
def patience(name: str) -> Iterator[None]:
    """Tell a person at a terminal what takes so long, if it does."""

    def tell() -> None:
        if sys.stderr.isatty():
            print(f"penstock: compiling {name} ...", file=sys.stderr, flush=True)

    timer = threading.Timer(PATIENCE, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
