"""One rank's end of messages: it begins with them, waits at most as long as the group allows, and
says what has gone wrong.

Which messages there are, and in which order, is not known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, TypeAlias
from weakref import ref

import torch
import torch.distributed as dist

from penstock.distributed import torch_group
from penstock.distributed.abort import AbortKey, Watch
from penstock.distributed.failures import drifted, failed_wait, given_up
from penstock.distributed.messages import Header, room_for
from penstock.distributed.turns import Rows

#: Sends to one rank that may be under way at once: their buffers are alive.
IN_FLIGHT = 64

_Sends: TypeAlias = deque[tuple[dist.Work, torch.Tensor, str]]


class Endpoint:
    """What carries messages to and from the other ranks of a group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        torch_group.check_backend(group)
        # Torch destroys a group when nobody has it any more.
        self._group = ref(group)
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.limit = torch_group.limit_of(group)
        #: What carries tensors on the host.
        self._host = torch_group.host_backend(group)
        self._key = AbortKey(torch_group.store_of(group))
        self._watch = Watch(self._key, self._break_waits)
        #: For each other rank what carries messages between the two; made when all are there.
        self._pairs: dict[int, Any] = {}
        #: For each rank the sends that may be under way, with their buffers.
        self._sends: dict[int, _Sends] = {}
        #: Whether tensors of a device travel as they are.
        self._carried: dict[torch.device, bool] = {}
        #: Why this group cannot be used any more, as far as this rank knows.
        self._reason: str | None = None

    @property
    def group(self) -> dist.ProcessGroup:
        """The group, which lives as long as somebody runs programs in it."""
        group = self._group()
        assert group is not None
        return group

    @property
    def has_given_up(self) -> bool:
        """Whether this rank knows that the group cannot be used any more."""
        return self._reason is not None

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

    def finish(self) -> None:
        """Wait until all that was sent has been taken."""
        for peer, sends in self._sends.items():
            while sends:
                self._await_oldest(peer, sends)

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

    def _room_is_on_host(self, rows: Rows) -> bool:
        return rows.device.type == "cpu" or not self._carries(rows.device)

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
        is_long = not work.is_completed()
        if is_long:
            self._watch.begin()
        try:
            work.wait(self.limit)
        except RuntimeError as error:
            failure = error
        else:
            return
        finally:
            if is_long:
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
        self.give_up(f"rank {self.rank} found: {first_line(failure)}")
        raise failure

    def _check(self, message: torch.Tensor, expected: Header, peer: int, what: str) -> None:
        if not expected.is_on(message):
            self._drift(message, expected, peer, what)

    def _drift(self, message: torch.Tensor, expected: Header, peer: int, what: str) -> NoReturn:
        failure = drifted(self.rank, peer, what, expected, Header.unpack(message))
        self.give_up(f"rank {self.rank} found: {first_line(failure)}")
        raise failure


def first_line(error: BaseException) -> str:
    """What an error says, in short."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
