"""When counted loops run in windows of iterations: once the calls of a program so far would have
saved what making it anew costs.

The wider blocks must be traced, and later compiled. Whoever runs a loop a few times never waits for
that. The estimate counts what the planner has fired, so that two runs of a program change to
windows at the same call. On a GPU plans that are kept whole are CUDA graphs, which windows do not
make faster: only calls whose saved values leave memory run in windows there. What a window saves
must be a small part of their budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from penstock.passes.windows import open_windows, window_bytes
from penstock.run.fused.setting import Fusion
from penstock.run.memory.policy import KEEP, Policy, current_policy
from penstock.run.shipped import has_shipped_plans

if TYPE_CHECKING:
    from penstock.run.executable import Executable

#: What making the wider form takes, in seconds, and what it saves for each firing, by device.
PRICE, SAVING, SAVING_ON_GPU = 2.0, 4e-6, 2e-4

#: Windows are a small part of a budget if it has room for so many.
IN_BUDGET = 8


class _Choice:
    """The setting: None lets the fusion setting decide."""

    is_on: bool | None = None


@contextmanager
def loop_windows(is_on: bool) -> Iterator[None]:
    """Calls inside run counted loops in windows, or not, whatever pays."""
    before, _Choice.is_on = _Choice.is_on, is_on
    try:
        yield
    finally:
        _Choice.is_on = before


class Windows:
    """The form of a program that has windows before its counted loops."""

    __slots__ = ("_bytes", "_form", "_is_on_gpu", "_make", "firings")

    def __init__(self, executable: Executable, devices: set[str], is_open: bool) -> None:
        program, max_depth = executable.program, executable.max_depth
        self._is_on_gpu = any(device.startswith("cuda") for device in devices)
        kinds = {device.partition(":")[0] for device in devices}
        is_apt = not is_open and executable.placement is None and kinds <= {"cpu", "cuda"}
        kind = type(executable)
        #: Compiles the form; None where there is none.
        self._make: Callable[[], Executable] | None = None
        if is_apt and open_windows(program) is not program:
            self._make = partial(kind, program, max_depth, opens_windows=True)
        #: Bytes that a window computes for one instance, if that is known.
        self._bytes = window_bytes(program) if self._make is not None else None
        self._form: Executable | None = None
        #: How many nodes calls have fired.
        self.firings = 0

    def chosen(self, count: int = 1) -> Executable | None:
        """The form, where a call for so many instances is to be run with it."""
        if self._make is None or not self._is_due() or has_shipped_plans():
            return None
        policy = current_policy() or KEEP
        if policy.kind != "keep" and not self._fits(policy, count):
            return None
        if policy.kind == "keep" and self._is_on_gpu and _Choice.is_on is None:
            return None
        if self._form is None:
            self._form = self._make()
        return self._form

    def _fits(self, policy: Policy, count: int) -> bool:
        """Whether what a window saves is a small part of a budget; bounds go by launches."""
        if policy.budget is None or self._bytes is None:
            return False
        return IN_BUDGET * self._bytes * count <= policy.budget

    def _is_due(self) -> bool:
        if _Choice.is_on is not None:
            return _Choice.is_on
        saving = SAVING_ON_GPU if self._is_on_gpu else SAVING
        return Fusion.mode == "always" or self.firings * saving > PRICE
