"""Sends and receives messages between the ranks of a process group, in the order of one schedule.

All ranks go through the same list of operations; each carries out those in which it takes part.
Sends do not wait; a receive waits for its message, and checks that it belongs to the same place of
the same schedule. `docs/distributed.md` says why this cannot deadlock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from penstock.distributed import torch_group
from penstock.distributed.endpoint import Endpoint, first_line
from penstock.distributed.failures import disagreement, given_up
from penstock.distributed.messages import (
    Header,
    message_of,
    new_message,
    rows_in,
    size_with_header,
    values_in,
)
from penstock.distributed.turns import Rows
from penstock.errors import AgreementError
from penstock.plan.schedule import Array

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


class Transport(Endpoint):
    """This process's end of all exchanges with a group, which go by one schedule."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        #: The digest that stands in front of messages: of the schedule as far as they belong to.
        self.digest = b""
        #: How many operations of the total order lie behind.
        self.number = 0
        #: How many calls have begun.
        self.calls = 0
        #: Calls and backward passes of one process go one after the other.
        self.lock = threading.RLock()
        #: What ranks have told each other and not compared yet.
        self._open: _Agreement | None = None
        #: What they were found to differ in, in this call, and the lock of threads that ask for it.
        self._difference: AgreementError | None = None
        self._settling = threading.Lock()
        #: Messages of the next operations that are on their way, and where they will be.
        self._expected: deque[tuple[Any, dist.Work]] = deque()

    def begin_call(self) -> int:
        """The number of a call that begins."""
        if self._reason is not None:
            raise given_up(self.rank, "beginning a call", self._reason)
        self.calls += 1
        return self.calls

    @contextmanager
    def guarded(self, operation: str) -> Iterator[None]:
        """Around what this rank does alone: if it fails, all others hear of it, unless it fails
        because ranks differ.
        """
        try:
            yield
        except BaseException as error:
            self.note_failure(error, operation)
            raise

    def note_failure(self, error: BaseException, operation: str) -> None:
        """The same for an error that was caught and is raised once more."""
        if isinstance(error, AgreementError):
            return
        if isinstance(error, Exception):
            self.settle()
        self.give_up(f"rank {self.rank} failed in {operation}: {first_line(error)}")

    # ---- operations of the total order -----------------------------------------------------------

    @contextmanager
    def agreement(self, facts: Mapping[str, int], advice: Mapping[str, str]) -> Iterator[None]:
        """Around what all ranks do alike: facts are compared in front of the first message, and all
        ranks raise where they differ. What they plan, and fail in, may be known before.
        """
        self._open = self._begin_agreement(facts, advice)
        try:
            yield
        except AgreementError:
            raise
        except Exception:
            self.settle()
            raise
        except BaseException as error:
            self.give_up(f"rank {self.rank} was interrupted: {first_line(error)}")
            raise
        self.settle()

    def _begin_agreement(self, facts: Mapping[str, int], advice: Mapping[str, str]) -> _Agreement:
        """Tell every rank what this one is about to do."""
        self._difference = None
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
        """Compare what ranks are about to do, if that is open; all raise where they differ, on
        every thread that asks.
        """
        with self._settling:
            if self._difference is not None:
                raise self._difference
            mine = self._open
            if mine is None or self._reason is not None:
                return
            try:
                self._compare(mine)
            except AgreementError as error:
                self._difference = error
                raise
            finally:
                self._open = None

    def _compare(self, mine: _Agreement) -> None:
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
        message, work = self._next_expected() or self._begin_to_receive(rows, peer)
        self._wait(work, f"receiving {rows.what}", peer)
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
        memory, work = self._next_expected() or self._begin_to_hear(rows, source)
        self._wait(work, f"receiving {rows.what}", source)
        if not memory.startswith(header.pack()):
            self._drift(torch.frombuffer(memory, dtype=torch.uint8), header, source, rows.what)
        return values_in(memory, rows.shape, rows.dtype)

    # ---- messages that are begun before their turn -----------------------------------------------

    def expect(self, rows: Rows, source: int, *, is_told: bool) -> bool:
        """Begin to receive what the next operation brings in which this rank takes part, behind
        those that were expected before: messages find their way while the rank is busy. False where
        that must wait.
        """
        is_ready = self._open is None and bool(self._pairs)
        if not is_ready or not (is_told or self._room_is_on_host(rows)):
            return False
        begin = self._begin_to_hear if is_told else self._begin_to_receive
        self._expected.append(begin(rows, source))
        return True

    def _next_expected(self) -> tuple[Any, dist.Work] | None:
        return self._expected.popleft() if self._expected else None

    def _begin_to_receive(self, rows: Rows, peer: int) -> tuple[Any, dist.Work]:
        message, pair = self._room(rows), self._pairs[peer]
        begin = partial(torch_group.exchange, self.group, pair, message, peer, self.rank)
        return message, self._begin_to_take(begin, peer, rows.what)

    def _begin_to_hear(self, rows: Rows, source: int) -> tuple[Any, dist.Work]:
        memory = bytearray(size_with_header(rows.shape, rows.dtype))
        message = torch.frombuffer(memory, dtype=torch.uint8)
        begin = partial(torch_group.broadcast, self._host, message, source)
        return memory, self._begin_to_take(begin, source, rows.what)

    def _begin_operation(self) -> None:
        if self._open is not None:
            self.settle()
        self.number += 1

    @property
    def _header(self) -> Header:
        return Header(self.digest, self.number)
