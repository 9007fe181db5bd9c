"""One call per instance, each in a fiber of this thread, so that a call can wait for all others.

When every fiber waits or has ended, `flush` answers all waits at once, and the fibers go on in the
order of a plain loop. Nothing else decides what happens when: the same calls give the same
switches. Between fibers the thread has the state that `run` found it in, and no fiber outlives
`run`. A fiber is a greenlet; a greenlet whose call has ended takes the next one that is not begun.
"""

from __future__ import annotations

import heapq
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from threading import get_ident
from types import TracebackType
from typing import Any, Literal, NoReturn

from greenlet import GreenletExit, getcurrent, greenlet

from penstock.capture.lazy.fiber_calls import Call, Group, Outcome, Wait
from penstock.capture.lazy.switchboard import Switchboard
from penstock.capture.location import user_line
from penstock.errors import InternalError, PenstockWarning, WaitError, report

#: Greenlets that would not end; they are suspended for good.
_abandoned: list[greenlet] = []


class Fibers:
    """Runs calls in fibers; `flush` is given all waits, in order, when no fiber can go on."""

    def __init__(self, flush: Callable[[list[Wait]], None]) -> None:
        self._flush = flush
        #: The number of the instance that runs; None outside of all fibers.
        self.current: int | None = None
        self._running: Call | None = None
        #: The greenlet and the thread of `run`, and the outermost calls; None outside of `run`.
        self._hub: greenlet | None = None
        self._thread = 0
        self._outermost: Group | None = None
        #: Calls that have not begun, and fibers that can go on.
        self._fresh: deque[Call] = deque()
        self._ready: deque[Call] = deque()
        #: Fibers that have begun and not ended.
        self._begun: dict[Call, None] = {}
        self._waits: list[Wait] = []
        #: A heap of the fibers that wait for their turn, by their order.
        self._turns: list[tuple[tuple[int, ...], Call]] = []
        #: Instances that would not end.
        self._unstoppable: list[int] = []
        #: The calls that have to stop, and why.
        self._failure: tuple[Group, BaseException] | None = None

    def run(
        self,
        calls: Sequence[Callable[[], Any]],
        *,
        numbers: Sequence[int] | None = None,
        on_error: Literal["raise", "return"] = "raise",
        describe: Callable[[int], str] = "in instance {}".format,
    ) -> list[Outcome]:
        """The outcome of each call, as of `[call() for call in calls]`; `numbers` names them.

        Inside a fiber, the calls become fibers beside all others, and this one waits for them. An
        exception stops the other calls and is raised, with `describe(number)` as a note, or becomes
        the outcome of its call. KeyboardInterrupt and its like stop all calls and are raised.
        """
        if not calls:
            return []
        numbers = range(len(calls)) if numbers is None else numbers
        parent = None if self._hub is None else self._leave()
        group = Group(parent, len(calls), on_error == "return", describe)
        self._fresh.extend([Call(group, *rest) for rest in zip(range(len(calls)), numbers, calls)])
        if parent is None:
            self._drive(group)
        else:
            self._suspend(parent)
        if group.error is None:
            return [outcome for outcome in group.outcomes if outcome is not None]
        error, group.error = group.error, None
        try:
            raise error
        finally:
            del error, group, parent  # Its traceback holds this frame, which must not hold it.

    def wait(self, request: Any) -> Any:
        """What the next `flush` answers to `request`; the other fibers go on meanwhile."""
        call = self._leave()
        wait = Wait(call, request)
        self._waits.append(wait)
        self._suspend(call)
        if wait.error is None:
            return wait.answer
        try:
            raise wait.error
        finally:
            del call, wait  # As in `run`: the error must not hold itself.

    def wait_for_turn(self) -> None:
        """Go on where a plain loop would be here: when all earlier instances have ended."""
        if self._running is None or not self._running.has_turn():
            call = self._leave()
            heapq.heappush(self._turns, (call.order, call))
            self._suspend(call)

    def _leave(self) -> Call:
        """The running fiber, whose state is saved; the thread has its own again."""
        call = self._running
        if call is None or self._thread != get_ident():
            raise _outside_of_fibers()
        if call.is_stopping:
            self._end_at_last(call)
        call.saved = self._switchboard.leave()
        return call

    def _suspend(self, call: Call) -> None:
        """Go to the hub; come back when it resumes the fiber."""
        call.where = getcurrent()
        self._running = self.current = None
        self._hub_greenlet().switch()
        self._running, self.current = call, call.number
        self._switchboard.enter(call.saved)
        if call.is_stopping:
            raise GreenletExit

    def _hub_greenlet(self) -> greenlet:
        assert self._hub is not None
        return self._hub

    def _drive(self, group: Group) -> None:
        """The hub: switches to fibers until all have ended."""
        self._hub, self._thread, self._outermost = getcurrent(), get_ident(), group
        self._switchboard = Switchboard()
        try:
            while group.remaining and group.error is None:
                try:
                    self._go_on()
                except BaseException as error:
                    self._failure = (group, error)
                while self._failure is not None:
                    self._handle_failure(*self._failure)
        finally:
            self._switchboard.give_up()
            self._hub = self._outermost = None
            self._forget(group)
        if self._unstoppable:
            numbers, self._unstoppable = self._unstoppable, []
            warnings.warn(_would_not_end(numbers), PenstockWarning, stacklevel=3)

    def _go_on(self) -> None:
        if self._ready:
            self._resume(self._ready.popleft())
        elif self._fresh:
            greenlet(self._work, self._hub).switch()
        elif self._turns and self._turns[0][1].has_turn():
            self._resume(heapq.heappop(self._turns)[1])
        else:
            self._answer_waits()

    def _resume(self, call: Call) -> None:
        assert call.where is not None
        call.where.switch()

    def _answer_waits(self) -> None:
        if not self._waits:
            raise InternalError("No fiber can go on, and none waits for a value.")
        waits, self._waits = sorted(self._waits, key=attrgetter("order")), []
        self._flush(waits)
        self._ready.extend([wait.call for wait in waits])

    def _work(self) -> None:
        """What a greenlet does: one call after the other, until one must wait."""
        while self._fresh and not self._ready and self._failure is None:
            self._carry_out(self._fresh.popleft())

    def _carry_out(self, call: Call) -> None:
        self._begun[call] = None
        self._running, self.current = call, call.number
        self._switchboard.enter(call.saved)
        try:
            outcome = Outcome(call.group.context.copy().run(call.function), None)
        except BaseException as error:
            outcome = Outcome(None, error.with_traceback(_below(error.__traceback__)))
        self._switchboard.give_up()
        self._running = self.current = None
        self._end(call, outcome)
        del call, outcome  # The frames of an error lead here, too.

    def _end(self, call: Call, outcome: Outcome) -> None:
        del self._begun[call]
        call.where = None
        group, error = call.group, outcome.error
        is_stopped = call.is_stopping and isinstance(error, GreenletExit)
        group.end(call.place, Outcome(None, None) if is_stopped else outcome)
        if is_stopped:
            return
        if error is not None and not isinstance(error, Exception):
            assert self._outermost is not None
            self._failure = (self._outermost, error)
        elif call.is_stopping:
            return
        elif error is not None and not group.returns_errors:
            error.add_note(group.describe(call.number))
            self._failure = (group, error)
        elif not group.remaining and group.parent is not None:
            self._ready.append(group.parent)

    def _handle_failure(self, group: Group, error: BaseException) -> None:
        """Stop the calls of a group; then `run` raises the error where it was called."""
        self._failure = None
        begun = [call for call in self._begun if call.group.is_inside(group)]
        self._forget(group)
        for call in sorted(begun, key=attrgetter("order"), reverse=True):
            self._stop(call, error)
        group.error = error
        if group.parent is not None:
            self._ready.append(group.parent)

    def _forget(self, group: Group) -> None:
        """Take the calls of a group, and the calls they made, from all queues."""
        self._fresh = deque(call for call in self._fresh if not call.group.is_inside(group))
        self._ready = deque(call for call in self._ready if not call.group.is_inside(group))
        self._waits = [wait for wait in self._waits if not wait.call.group.is_inside(group)]
        self._turns = [turn for turn in self._turns if not turn[1].group.is_inside(group)]
        heapq.heapify(self._turns)

    def _stop(self, call: Call, cause: BaseException) -> None:
        """Let a fiber unwind: GreenletExit is raised where it waits."""
        call.is_stopping = True
        where = call.where
        if where is not None and not where.dead:
            where.switch()
        if call not in self._begun:
            outcome = call.group.outcomes[call.place]
            if outcome is not None and isinstance(outcome.error, Exception):
                where_it_was = f"{call.group.describe(call.number)}, while it was stopped"
                cause.add_note(f"{where_it_was}: {outcome.error!r}")
            return
        del self._begun[call]
        self._running = self.current = None
        if where is not None and not where.dead:
            _abandoned.append(where)
            self._unstoppable.append(call.number)

    def _end_at_last(self, call: Call) -> NoReturn:
        """A fiber that is being stopped wants to wait: it must end, or is suspended for good."""
        if call.patience:
            call.patience -= 1
            raise GreenletExit
        self._switchboard.give_up()
        self._running = self.current = None
        hub = self._hub_greenlet()
        while True:
            try:
                hub.switch()
            except BaseException:
                continue


def _below(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frame that caught it."""
    return None if trace is None else trace.tb_next


def _outside_of_fibers() -> WaitError:
    return WaitError(
        report(
            "A recorded value cannot be read here.",
            where=user_line(),
            facts=[
                ("this code", "runs outside of the instances of the map, or on another thread"),
                ("the value", "is computed when all instances wait, on the thread of the map"),
            ],
            todo="Read the value in the mapped function itself, and pass the number on.",
        )
    )


def _would_not_end(numbers: list[int]) -> str:
    return report(
        "Instances of a map had to be stopped and would not end; they are suspended for good.",
        facts=[
            ("instances", ", ".join(map(str, numbers))),
            ("what they do", "catch GreenletExit, and read recorded values again"),
        ],
        todo="Catch Exception instead of BaseException, or raise again what is not an Exception.",
    )
