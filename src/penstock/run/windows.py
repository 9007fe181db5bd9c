"""When counted loops run in windows of iterations: once the calls of a program so far would have
saved what making it anew costs.

The wider blocks must be traced, and later compiled. Whoever runs a loop a few times never waits for
that. The estimate counts what the planner has fired, so that two runs of a program change to
windows at the same call. Measured on CPUs only, so other devices keep to single iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from penstock.passes.windows import open_windows
from penstock.run.fused.setting import Fusion
from penstock.run.memory.policy import current_policy
from penstock.run.shipped import has_shipped_plans

if TYPE_CHECKING:
    from penstock.run.executable import Executable

#: What making the wider form takes, in seconds, and what it saves for each firing.
PRICE, SAVING = 2.0, 4e-6


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

    __slots__ = ("_form", "_make", "firings")

    def __init__(self, executable: Executable, devices: set[str], is_open: bool) -> None:
        program, max_depth = executable.program, executable.max_depth
        is_apt = not is_open and executable.placement is None and devices <= {"cpu"}
        kind = type(executable)
        #: Compiles the form; None where there is none.
        self._make: Callable[[], Executable] | None = None
        if is_apt and open_windows(program) is not program:
            self._make = partial(kind, program, max_depth, opens_windows=True)
        self._form: Executable | None = None
        #: How many nodes calls have fired.
        self.firings = 0

    def chosen(self) -> Executable | None:
        """The form, where the call to come is to be run with it."""
        if self._make is None or not self._is_due() or has_shipped_plans():
            return None
        policy = current_policy()
        if policy is not None and policy.kind != "keep":  # bounds go by single iterations
            return None
        if self._form is None:
            self._form = self._make()
        return self._form

    def _is_due(self) -> bool:
        if _Choice.is_on is not None:
            return _Choice.is_on
        return Fusion.mode == "always" or self.firings * SAVING > PRICE
