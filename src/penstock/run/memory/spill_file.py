"""Bytes of CPU tensors in a file, few of them at once, many by a thread.

The file has no name, so nothing is left of it when the process ends, however that happens. It is
written and not mapped: a full disk is then an error that can be raised. One thread does everything
that it is given in order, and nothing is written beside it, so bytes that are given back can be
written over by whoever comes next. Few bytes are with the system sooner than with a thread: it
writes them to the disk, and reads them from there, while others are computed.

A process that is forked has the same file as its parent, and no thread: after that both read what
they have in it and write to files of their own, and the child does what was left to the thread.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any
from weakref import WeakSet

import torch

from penstock.errors import SpillError, report
from penstock.run.memory.extents import Extent, Extents, rounded
from penstock.run.memory.parcels import Arriving, joint_size, split
from penstock.run.memory.policy import in_words

#: Bytes that are copied to the system, or from it, in about the time in which a thread is told.
AT_ONCE = 1 << 20


class SpillFile:
    """A file that holds what does not fit in memory; opened when it is first needed.

    Arguments:
        alone: whether to do without a thread. Where memory has run out there may be none to start
            one, and Python waits for ever for a thread that fails as it starts.
    """

    def __init__(self, *, alone: bool = False) -> None:
        self._at_once = sys.maxsize if alone else AT_ONCE
        #: What is written to next.
        self._file: _File | None = None
        self._worker: ThreadPoolExecutor | None = None
        #: What the thread has yet to do.
        self._waiting: set[Future[None]] = set()
        #: What the thread of a parent process had yet to do.
        self._left: set[Future[None]] = set()
        _known.add(self)

    def leave_file(self) -> None:
        """Nothing more is written to the file: another process reads it."""
        self._file = None

    def begin_in_child(self) -> None:
        """The thread has stayed with the parent."""
        self.leave_file()
        self._at_once, self._worker = sys.maxsize, None
        self._left, self._waiting = self._left | self._waiting, set()

    def is_left(self, job: Future[None]) -> bool:
        """Whether nobody will do what a thread was told."""
        return job in self._left

    def send(self, parts: Sequence[torch.Tensor]) -> _Spilled:
        """Start to write bytes."""
        sizes = [len(part) for part in parts]
        size = joint_size(sizes)
        file = self._opened(size)
        extent = file.take(size)
        if extent.size <= self._at_once and not self._waiting:
            written = _done_at_once(_write, file, parts, extent.start)
        else:
            written = self._told(_write, file, parts, extent.start)
        return _Spilled(self, parts, file, extent, written)

    def read(self, file: _File, extent: Extent, sizes: Sequence[int]) -> Arriving:
        """Start to read bytes."""
        if extent.size <= self._at_once:
            _announce(file, extent)
            return _ReadAtOnce(file, extent, sizes)
        values = torch.empty(joint_size(sizes), dtype=torch.uint8)
        work = partial(_read, file, values, extent.start)
        return _Read(self, split(values, sizes), work, self._told(work))

    def _told(self, work: Callable[..., None], *arguments: Any) -> Future[None] | None:
        """Tell the thread what to do, and remember it until it is done."""
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="penstock-spill")
        try:
            job = self._worker.submit(work, *arguments)
        except RuntimeError:  # the system has no more threads to give
            self._worker = None  # which remembers the work, and would do it some day
            return _done_at_once(work, *arguments)
        self._waiting.add(job)
        job.add_done_callback(self._waiting.discard)
        return job

    def _opened(self, size: int) -> _File:
        """The file, for so many bytes."""
        if self._file is None:
            try:
                self._file = _new_file()
            except OSError as error:
                raise _no_room(error, size, 0) from error
        return self._file


#: All files of the process.
_known: WeakSet[SpillFile] = WeakSet()


def _leave_files() -> None:
    for each in list(_known):
        each.leave_file()


def _begin_in_child() -> None:
    for each in list(_known):
        each.begin_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_leave_files, after_in_child=_begin_in_child)


class _File:
    """A file without a name, closed when nobody refers to it any more."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.extents = Extents()

    def take(self, size: int) -> Extent:
        """Room for so many bytes."""
        found = self.extents.take(size)
        if found is None:
            self.extents.grow(rounded(size))
            found = self.extents.take(size)
        assert found is not None
        return found

    def __del__(self) -> None:
        os.close(self.number)


def _new_file() -> _File:
    number, name = tempfile.mkstemp(prefix="penstock-")
    os.unlink(name)
    return _File(number)


class _Spilled:
    """Bytes in the file, or on their way there."""

    def __init__(
        self,
        spill: SpillFile,
        parts: Sequence[torch.Tensor],
        file: _File,
        extent: Extent,
        written: Future[None] | None,
    ) -> None:
        self._spill, self._file, self._extent = spill, file, extent
        self._sizes, self._written = [len(part) for part in parts], written
        #: The bytes, as long as they may have to be written once more.
        self._parts = parts if written is not None else ()

    def settle(self) -> None:
        """Wait until the bytes are written."""
        if self._written is None:
            return
        if self._spill.is_left(self._written):
            made = self._spill.send(self._parts)
            self._file, self._extent, self._written = made._file, made._extent, made._written
        try:
            if self._written is not None:
                self._written.result()
        except OSError as error:
            beside = self._file.extents.used - self._extent.size
            raise _no_room(error, sum(self._sizes), beside) from error
        self._written, self._parts = None, ()

    def bring(self) -> Arriving:
        """Start to read the bytes."""
        return self._spill.read(self._file, self._extent, self._sizes)

    def free(self) -> None:
        """The bytes may be written over."""
        self._file.extents.give_back(self._extent)


class _Read:
    """Bytes that are being read."""

    def __init__(
        self,
        spill: SpillFile,
        parts: list[torch.Tensor],
        work: Callable[[], None],
        done: Future[None] | None,
    ) -> None:
        self._spill, self._parts, self._work, self._done = spill, parts, work, done

    def settle(self) -> list[torch.Tensor]:
        """Wait until the bytes are read."""
        if self._done is not None:
            try:
                if self._spill.is_left(self._done):
                    self._work()
                else:
                    self._done.result()
            except OSError as error:
                raise _not_read(error) from error
        return self._parts


class _ReadAtOnce:
    """Bytes that are read when they are wanted."""

    def __init__(self, file: _File, extent: Extent, sizes: Sequence[int]) -> None:
        self._file, self._extent, self._sizes = file, extent, sizes

    def settle(self) -> list[torch.Tensor]:
        """Read them."""
        values = torch.empty(joint_size(self._sizes), dtype=torch.uint8)
        try:
            _read(self._file, values, self._extent.start)
        except OSError as error:
            raise _not_read(error) from error
        return split(values, self._sizes)


def _announce(file: _File, extent: Extent) -> None:
    """Have the system bring bytes from the disk, as far as they are not in its memory."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.number, extent.start, extent.size, os.POSIX_FADV_WILLNEED)


def _write(file: _File, parts: Sequence[torch.Tensor], start: int) -> None:
    for part in parts:
        remaining = part.numpy().data
        place = start
        while remaining:
            count = os.pwrite(file.number, remaining, place)
            remaining, place = remaining[count:], place + count
        start += rounded(len(part))


def _done_at_once(work: Callable[..., None], *arguments: Any) -> Future[None] | None:
    """Do what a thread would; what tells of it where it failed."""
    try:
        work(*arguments)
    except OSError as error:
        failed: Future[None] = Future()
        failed.set_exception(error)
        return failed
    return None


def _read(file: _File, values: torch.Tensor, place: int) -> None:
    remaining = values.numpy().data
    while remaining:
        count = os.preadv(file.number, [remaining], place)
        if not count:
            raise OSError(f"the file ends at byte {place}")
        remaining, place = remaining[count:], place + count


def _not_read(error: OSError) -> SpillError:
    return SpillError(
        report(
            "Saved values could not be read back from disk.",
            facts=[("folder", _folder()), ("the system says", str(error))],
            todo="Check the disk; the environment variable TMPDIR can name another folder.",
        )
    )


def _folder() -> str:
    """Where the file is, and why there."""
    named = os.environ.get("TMPDIR")
    try:
        folder = tempfile.gettempdir()
    except OSError:
        return "none that can be written to"
    if not named:
        return f"{folder}, as TMPDIR is not set"
    if os.path.abspath(named) != os.path.abspath(folder):  # chosen once, and only if it can be used
        return f"{folder}, and not {named}, which TMPDIR names"
    return f"{folder}, which TMPDIR names"


def _free() -> str:
    try:
        return in_words(shutil.disk_usage(tempfile.gettempdir()).free)
    except OSError as error:
        return error.strerror or str(error)


def _no_room(error: OSError, size: int, beside: int) -> SpillError:
    return SpillError(
        report(
            "Saved values could not be written to disk.",
            facts=[
                ("wanted", in_words(size)),
                ("in the file beside it", in_words(beside)),
                ("folder", _folder()),
                ("free there", _free()),
                ("the system says", error.strerror or str(error)),
            ],
            todo="Make room there, or name another folder in the environment variable TMPDIR.",
        )
    )
