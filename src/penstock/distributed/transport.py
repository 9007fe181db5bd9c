"""Sends and receives messages between the ranks of a process group, in the order of one schedule.

All ranks go through the same list of operations; each carries out those in which it takes part.
Sends do not wait; a receive waits for its message, at most as long as the group allows, and checks
that it belongs to the same place of the same schedule. `docs/distributed.md` says why this cannot
deadlock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist

from penstock.distributed import torch_group
from penstock.distributed.abort import AbortKey, Watch
from penstock.distributed.failures import disagreement, drifted, failed_wait, given_up
from penstock.distributed.messages import (
    Header,
    message_of,
    new_message,
    room_for,
    rows_in,
)
from penstock.distributed.turns import Rows
from penstock.errors import AgreementError
from penstock.plan.schedule import Array

#: Sends to one rank that may be under way at once: their buffers are alive.
IN_FLIGHT = 64

#: What stands for a schedule's digest where ranks compare what they are about to do, and what they
#: send each other then.
_AGREE, _ARGUMENTS = b"agree...", "its arguments"


class _Agreement(NamedTuple):
    """What ranks are about to do: messages of all, those of others on their way."""

    facts: Mapping[str, int]
    advice: Mapping[str, str]
    header: Header
    #: How many operations lay behind when it was begun.
    number: int
    messages: Sequence[torch.Tensor]
    works: Mapping[int, dist.Work]


class Transport:
    """This process's end of all exchanges with a group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        torch_group.check_backend(group)
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.limit = torch_group.limit_of(group)
        #: What carries tensors on the host.
        self._host = torch_group.host_backend(group)
        #: The digest that stands in front of messages: of the schedule as far as they belong to.
        self.digest = b""
        #: How many operations of the total order lie behind.
        self.number = 0
        #: How many calls have begun.
        self.calls = 0
        #: Calls and backward passes of one process go one after the other.
        self.lock = threading.RLock()
        self._key = AbortKey(torch_group.store_of(group))
        self._watch = Watch(self._key, self._break_waits)
        #: For each other rank what carries messages between the two; made when all are there.
        self._pairs: dict[int, Any] = {}
        #: For each rank the sends that may be under way, with their buffers.
        self._sends: dict[int, _Sends] = {}
        #: Whether tensors of a device travel as they are.
        self._carried: dict[torch.device, bool] = {}
        #: What ranks have told each other and not compared yet.
        self._open: _Agreement | None = None
        #: Why this group cannot be used any more, as far as this rank knows.
        self._reason: str | None = None

    def begin_call(self) -> int:
        """The number of a call that begins."""
        if self._reason is not None:
            raise given_up(self.rank, "beginning a call", self._reason)
        self.calls += 1
        return self.calls

    @property
    def has_given_up(self) -> bool:
        """Whether this rank knows that the group cannot be used any more."""
        return self._reason is not None

    @contextmanager
    def guarded(self, operation: str) -> Iterator[None]:
        """Around what this rank does alone: if it fails, all others hear of it, unless it fails
        because ranks differ.
        """
        try:
            yield
        except AgreementError:
            raise
        except BaseException as error:
            if isinstance(error, Exception):
                self.settle()
            self.give_up(f"rank {self.rank} failed in {operation}: {_first_line(error)}")
            raise

    def give_up(self, reason: str) -> None:
        """Tell all ranks that this one cannot go on, unless they know."""
        if self._reason is None:
            self._reason = reason
            self._sends.clear()
            self._key.write(reason)

    def _break_waits(self) -> None:
        """End all waits of this process, from another thread."""
        for backend in {self._host, *self._pairs.values()}:
            torch_group.break_waits(backend)

    # ---- operations of the total order -----------------------------------------------------------

    @contextmanager
    def agreement(self, facts: Mapping[str, int], advice: Mapping[str, str]) -> Iterator[None]:
        """Around what all ranks do alike: facts are compared in front of the first message, and all
        ranks raise where they differ. What they plan, and fail in, may be known before.
        """
        self._open = self._begin_agreement(facts, advice)
        try:
            yield
        except Exception:
            self.settle()
            raise
        except BaseException as error:
            self.give_up(f"rank {self.rank} was interrupted: {_first_line(error)}")
            raise
        self.settle()

    def _begin_agreement(self, facts: Mapping[str, int], advice: Mapping[str, str]) -> _Agreement:
        """Tell every rank what this one is about to do."""
        self.number += 1
        header = Header(_AGREE, len(facts))
        mine = torch.tensor(list(facts.values()), dtype=torch.int64)
        messages = [new_message(header, mine) for _ in range(self.size)]
        works: dict[int, dist.Work] = {}
        for source, message in enumerate(messages):
            begin = partial(torch_group.broadcast, self._host, message, source)
            if source == self.rank:
                self._begin(begin, message, source, _ARGUMENTS)
            else:
                works[source] = self._begin_to_take(begin, source, _ARGUMENTS)
        return _Agreement(facts, advice, header, self.number, messages, works)

    def settle(self) -> None:
        """Compare what ranks are about to do, if that is open; all raise where they differ."""
        mine, self._open = self._open, None
        if mine is None or self._reason is not None:
            return
        for source, work in mine.works.items():
            self._wait(work, f"receiving {_ARGUMENTS}", source)
            self._check(mine.messages[source], mine.header, source, _ARGUMENTS)
        shape = (len(mine.facts),)
        found = [rows_in(each, shape, torch.int64).tolist() for each in mine.messages]
        for position, name in enumerate(mine.facts):
            values = {rank: numbers[position] for rank, numbers in enumerate(found)}
            if len(set(values.values())) > 1:
                self.number = mine.number  # ranks have passed over different operations since
                raise disagreement(name, values, mine.advice[name])
        if not self._pairs:
            self._pairs = torch_group.pair_up(self.group)

    def send(self, rows: torch.Tensor, peer: int, what: str) -> None:
        """Send rows to a rank; does not wait for them to arrive."""
        self._begin_operation()
        message = new_message(self._header, self._portable(rows))
        pair = self._pairs[peer]
        begin = partial(torch_group.exchange, self.group, pair, message, self.rank, peer)
        self._begin(begin, message, peer, what)

    def receive(self, rows: Rows, peer: int) -> torch.Tensor:
        """Wait for rows from a rank."""
        self._begin_operation()
        message = self._room(rows)
        pair = self._pairs[peer]
        begin = partial(torch_group.exchange, self.group, pair, message, peer, self.rank)
        self._take(begin, peer, rows.what)
        self._check(message, self._header, peer, rows.what)
        return rows_in(message, rows.shape, rows.dtype).to(rows.device, non_blocking=True)

    def skip(self) -> None:
        """Pass an operation in which this rank takes no part."""
        self.number += 1

    def broadcast(self, values: torch.Tensor | None, rows: Rows, source: int) -> torch.Tensor:
        """Rows of one rank for all; `values` are given at the source."""
        self._begin_operation()
        if values is not None:
            message = new_message(self._header, self._portable(values))
        else:
            message = self._room(rows)
        self._spread(message, source, self._header, rows.what)
        return rows_in(message, rows.shape, rows.dtype).to(rows.device, non_blocking=True)

    def tell(self, values: torch.Tensor | None, rows: Rows, source: int) -> Array:
        """The same for values that steer, which are few and go to the planner."""
        self._begin_operation()
        header = self._header
        if values is not None:
            told: Array = values.cpu().numpy().copy()  # the slots are used again
            self._spread(message_of(header, told), source, header, rows.what)
            return told
        message = room_for(rows.shape, rows.dtype)
        self._spread(message, source, header, rows.what)
        heard: Array = rows_in(message, rows.shape, rows.dtype).numpy()
        return heard

    def finish(self) -> None:
        """Wait until all that was sent has been taken."""
        for peer, sends in self._sends.items():
            while sends:
                self._await_oldest(peer, sends)

    # ---- one message -----------------------------------------------------------------------------

    def _begin_operation(self) -> None:
        if self._open is not None:
            self.settle()
        self.number += 1

    @property
    def _header(self) -> Header:
        return Header(self.digest, self.number)

    def _portable(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows where the group can send them from."""
        return rows if self._carries(rows.device) else rows.cpu()

    def _carries(self, device: torch.device) -> bool:
        if device not in self._carried:
            self._carried[device] = torch_group.carries(self.group, device)
        return self._carried[device]

    def _room(self, rows: Rows) -> torch.Tensor:
        device = rows.device if self._carries(rows.device) else "cpu"
        return room_for(rows.shape, rows.dtype, device)

    def _begin(
        self, begin: Callable[[], dist.Work], message: torch.Tensor, peer: int, what: str
    ) -> None:
        """Begin to send."""
        sends = self._sends.setdefault(peer, deque())
        try:
            sends.append((begin(), message, what))
        except RuntimeError as error:
            self._fail(error, f"sending {what}", peer)
        if len(sends) > IN_FLIGHT:
            self._await_oldest(peer, sends)

    def _take(self, begin: Callable[[], dist.Work], peer: int, what: str) -> None:
        """Begin to receive, and wait for it."""
        self._wait(self._begin_to_take(begin, peer, what), f"receiving {what}", peer)

    def _begin_to_take(self, begin: Callable[[], dist.Work], peer: int, what: str) -> dist.Work:
        try:
            return begin()
        except RuntimeError as error:
            self._fail(error, f"receiving {what}", peer)

    def _spread(self, message: torch.Tensor, source: int, header: Header, what: str) -> None:
        """A message from one rank to all."""
        group = self._host if message.is_cpu else self.group
        begin = partial(torch_group.broadcast, group, message, source)
        if source == self.rank:
            self._begin(begin, message, source, what)
        else:
            self._take(begin, source, what)
            self._check(message, header, source, what)

    def _await_oldest(self, peer: int, sends: _Sends) -> None:
        work, _, what = sends.popleft()
        self._wait(work, f"sending {what}", peer)

    def _wait(self, work: dist.Work, operation: str, peer: int) -> None:
        if not work.is_completed():
            self._watch.begin()
        try:
            work.wait(self.limit)
        except RuntimeError as error:
            failure = error
        else:
            return
        finally:
            self._watch.end()
        self._fail(failure, operation, peer)

    def _fail(self, error: RuntimeError, operation: str, peer: int) -> NoReturn:
        """Raise what has gone wrong: the reason of the first rank that gave up, if there is one."""
        is_late = torch_group.is_timeout(error)
        reason = self._key.await_reason()
        if reason is not None:
            self._reason = reason
            raise given_up(self.rank, f"{operation}, with rank {peer}", reason)
        failure = failed_wait(self.rank, operation, peer, self.limit if is_late else None, error)
        self.give_up(f"rank {self.rank} found: {_first_line(failure)}")
        raise failure

    def _check(self, message: torch.Tensor, expected: Header, peer: int, what: str) -> None:
        if not expected.is_on(message):
            failure = drifted(self.rank, peer, what, expected, Header.unpack(message))
            self.give_up(f"rank {self.rank} found: {_first_line(failure)}")
            raise failure


_Sends = deque[tuple[dist.Work, torch.Tensor, str]]


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
