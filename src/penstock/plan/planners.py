"""Who plans a call: the plain machine, or the native one where it can and has proved worth loading.

Both make the same schedule, byte for byte, so that it does not matter who plans. Native code takes
a moment to load, and long to compile for the first time on a machine: another process compiles it
while the plain machine goes on, and it is loaded when a process has planned so much that the moment
is well spent.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from penstock.plan.limits import Limits
from penstock.plan.linked import Linked
from penstock.plan.machine import Machine
from penstock.plan.machine_state import ShapeOracle
from penstock.plan.native import aside
from penstock.plan.native.assemble import assemble
from penstock.plan.native.decode import Decoder
from penstock.plan.native.kept_code import is_compiled, note_compiled
from penstock.plan.native.program import NotNative

if TYPE_CHECKING:
    from penstock.plan.native.machine import NativeMachine

Planner: TypeAlias = "Machine | NativeMachine"

#: Seconds that native code would have saved, in all, after which it is loaded (as long as it
#: takes), after which another process is asked to compile it where it is not on disk yet, and after
#: which this one waits for it (as long as it takes).
WORTH_LOADING, WORTH_ASKING, WORTH_COMPILING = 0.5, 1.0, 30.0

#: What a launch of a plan that is kept takes less where native code has planned it and runs it.
LAUNCH_SECONDS = 20e-6

#: Loading takes less, compiling more.
NOTICE_SECONDS = 3.0

_log = logging.getLogger("penstock")


class _Choice:
    """What this process has planned so far, and what it plans with."""

    def __init__(self) -> None:
        self.mode = "auto"
        self.seconds = 0.0
        #: How many it takes before native code is thought of again.
        self.asked_at = WORTH_LOADING
        self.lock = threading.Lock()
        #: Whether another process has been asked to compile it.
        self.has_asked = False
        #: The class of native machines, once it is loaded; False where it cannot be.
        self.loaded: Any = None

    def native(self) -> Any:
        """The class of native machines, or None where plain ones plan."""
        if self.mode == "never" or self.loaded is False:
            return None
        if self.loaded is None and (self.mode == "always" or self._is_worth_it()):
            with self.lock:
                self._load()
        return self.loaded or None

    def _is_worth_it(self) -> bool:
        if self.seconds < self.asked_at:
            return False
        self.asked_at = self.seconds + WORTH_LOADING
        if is_compiled():
            return True
        if self.seconds >= WORTH_ASKING and not self.has_asked:
            self._ask()
        return self.seconds >= WORTH_COMPILING and not aside.is_under_way()

    def _ask(self) -> None:
        """Have native code compiled without waiting for it."""
        self.has_asked = True
        if find_spec("numba") is not None and aside.start():
            _log.info("another process compiles the planner; calls are planned plainly until then")

    def _load(self) -> None:
        if self.loaded is not None:
            return
        if find_spec("numba") is None:
            _log.info("numba is not installed: calls are planned without native code")
            self.loaded = False
            return
        text = "compiling the planner; its code is kept on disk for the next time"
        notice = threading.Timer(NOTICE_SECONDS, _log.warning, (text,))
        notice.start()
        try:
            from penstock.plan.native.machine import NativeMachine

            self.loaded = NativeMachine
            note_compiled()
        except Exception as problem:  # another Numba, say: what it has inside is relied on
            _log.warning("calls are planned without native code: %r", problem)
            self.loaded = False
        finally:
            notice.cancel()


_choice = _Choice()


def new_planner(
    linked: Linked,
    limits: Limits,
    shapes: ShapeOracle,
    count: int,
    seed: int,
    numbers: Sequence[int] | None,
) -> Planner:
    """A machine for one call."""
    native = _choice.native()
    if native is not None:
        assembled = _assembled(linked)
        if assembled is not None:
            return native(linked, *assembled, limits, shapes, count, numbers)  # type: ignore[no-any-return]
    return Machine(linked, limits, shapes, count, seed, numbers)


def gives_records(planner: object) -> TypeGuard[NativeMachine]:
    """Whether a planner is native: it plans in records."""
    return bool(_choice.loaded) and isinstance(planner, _choice.loaded)


def plans_natively(linked: Linked) -> bool:
    """Whether native code would plan a call of such a program now."""
    return _assembled(linked) is not None and _choice.native() is not None


def load_native() -> None:
    """Load or compile native code now, not when it has proved worth it."""
    with planning("always"):
        _choice.native()


def note_planned(planner: object, seconds: float) -> None:
    """A call has been planned."""
    if isinstance(planner, Machine) and _assembled(planner.linked) is not None:
        _choice.seconds += seconds


def note_run_plainly(linked: Linked, launches: int) -> None:
    """So many launches of a kept plan were run that native code could have planned."""
    if _assembled(linked) is not None:
        _choice.seconds += launches * LAUNCH_SECONDS


def _assembled(linked: Linked) -> tuple[Any, Decoder] | None:
    """The native program of a graph, if there can be one; made when it is first asked for."""
    if linked.native is None:
        try:
            program = assemble(linked)
            linked.native = program, Decoder.of(program)
        except NotNative as error:
            linked.native = str(error)
    return None if isinstance(linked.native, str) else linked.native


@contextmanager
def planning(mode: str) -> Iterator[None]:
    """Calls inside are planned with native code where that can be ("always"), without ("never"), or
    as it pays ("auto").
    """
    assert mode in ("auto", "always", "never")
    before, _choice.mode = _choice.mode, mode
    try:
        yield
    finally:
        _choice.mode = before
