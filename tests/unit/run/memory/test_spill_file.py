"""The spill file: bytes come back, a full disk is an error, nothing is left."""

from __future__ import annotations

import errno
import gc
import os
import re
import tempfile
import threading
import time

import pytest
import torch

from penstock.errors import PenstockError, SpillError
from penstock.run.memory import spill_file
from penstock.run.memory.spill_file import SpillFile


def random_bytes(*sizes: int) -> list[torch.Tensor]:
    return [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes]


@pytest.fixture(params=["at once", "by a thread"])
def _either_way(request, monkeypatch):
    if request.param == "by a thread":
        monkeypatch.setattr(spill_file, "AT_ONCE", 0)


@pytest.fixture
def _by_a_thread(monkeypatch):
    monkeypatch.setattr(spill_file, "AT_ONCE", 0)


@pytest.mark.usefixtures("_either_way")
def test_bytes_come_back():
    file = SpillFile()
    sent = [random_bytes(1000, 1, 70_000), random_bytes(5), random_bytes(64, 64)]
    away = [file.send(parts) for parts in sent]
    for parts, each in zip(sent, away, strict=True):
        assert all(map(torch.equal, each.bring().settle(), parts))


def test_few_bytes_do_not_overtake_many_that_had_their_place(monkeypatch):
    """The thread is about to write where bytes were given back, and few bytes come next."""
    write, may_write = os.pwrite, threading.Event()

    def waiting(*arguments):
        if threading.current_thread() is not threading.main_thread():
            assert may_write.wait(60)
        return write(*arguments)

    monkeypatch.setattr(spill_file, "AT_ONCE", 10_000)
    monkeypatch.setattr(os, "pwrite", waiting)
    file = SpillFile()
    file.send(random_bytes(20_000)).free()
    parts = random_bytes(500)
    away = file.send(parts)
    may_write.set()
    away.settle()
    assert torch.equal(away.bring().settle()[0], parts[0])


@pytest.mark.usefixtures("_by_a_thread")
def test_bytes_that_were_given_back_are_written_again():
    file = SpillFile()
    for _ in range(20):
        parts = random_bytes(10_000)
        away = file.send(parts)
        arriving = away.bring()
        away.free()  # the thread reads before it writes for whoever comes next
        file.send(random_bytes(10_000)).free()
        assert torch.equal(arriving.settle()[0], parts[0])
    assert file._file.extents.end <= 30_000


def failing(number):
    def fail(*arguments, **options):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.usefixtures("_either_way")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EIO])
def test_a_full_disk_is_an_error_that_says_what_to_do(number, monkeypatch):
    file = SpillFile()
    file.send(random_bytes(2048)).settle()
    monkeypatch.setattr(os, "pwrite", failing(number))
    monkeypatch.delenv("TMPDIR", raising=False)
    away = file.send(random_bytes(3000))
    with pytest.raises(SpillError) as found:
        away.settle()
    text = str(found.value)
    assert "could not be written to disk" in text
    facts = dict(re.findall(r"^  (\S.*?)  +(.+)$", text, re.MULTILINE))
    assert facts.pop("free there")[-1] == "B"
    assert facts == {
        "wanted": "2.93 KiB",
        "in the file beside it": "2 KiB",
        "folder": f"{tempfile.gettempdir()}, as TMPDIR is not set",
        "the system says": os.strerror(number),
    }
    assert text.endswith(
        "Make room there, or name another folder in the environment variable TMPDIR."
    )
    assert isinstance(found.value, OSError)
    assert isinstance(found.value, PenstockError)


def test_a_file_that_cannot_be_made_is_the_same_error(monkeypatch):
    monkeypatch.setattr(spill_file.tempfile, "mkstemp", failing(errno.ENOSPC))
    with pytest.raises(SpillError, match="could not be written to disk"):
        SpillFile().send(random_bytes(3))


def test_where_no_folder_can_be_used_the_error_says_so(monkeypatch):
    def fail():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(spill_file.tempfile, "gettempdir", fail)
    file = SpillFile()
    with pytest.raises(SpillError, match="could not be written to disk") as found:
        file.send(random_bytes(3000))
    text = str(found.value)
    assert re.search(r"wanted +2.93 KiB\n", text)
    assert re.search(r"folder +none that can be written to\n", text)
    assert "No usable temporary directory" in text
    monkeypatch.undo()
    parts = random_bytes(3000)
    assert torch.equal(file.send(parts).bring().settle()[0], parts[0])
    assert file._file.extents.used == 3008


def test_a_folder_that_is_not_used_is_not_said_to_be(monkeypatch):
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    monkeypatch.setenv("TMPDIR", "/nonexistent/fast")
    with pytest.raises(SpillError) as found:
        SpillFile().send(random_bytes(3000)).settle()
    used = f"{tempfile.gettempdir()}, and not /nonexistent/fast, which TMPDIR names"
    assert used in str(found.value)


@pytest.mark.usefixtures("_either_way")
def test_bytes_that_cannot_be_read_are_an_error(monkeypatch):
    file = SpillFile()
    away = file.send(random_bytes(3000))
    away.settle()
    monkeypatch.setattr(os, "preadv", lambda *arguments: 0)
    monkeypatch.setenv("TMPDIR", tempfile.gettempdir())
    with pytest.raises(SpillError, match=r"could not be read back.*\n.*, which TMPDIR names"):
        away.bring().settle()


@pytest.mark.usefixtures("_either_way")
def test_bytes_are_written_and_read_in_pieces(monkeypatch):
    """The system may take fewer bytes than it was given."""
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda f, data, at: write(f, data[:100], at))
    monkeypatch.setattr(os, "preadv", lambda f, data, at: read(f, [data[0][:77]], at))
    parts = random_bytes(1234)
    away = SpillFile().send(parts)
    away.settle()
    assert torch.equal(away.bring().settle()[0], parts[0])


def spill_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("penstock-spill")]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def wait_until(happened) -> bool:
    deadline = time.monotonic() + 60
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.01)
    return happened()


@pytest.mark.usefixtures("_by_a_thread")
def test_neither_thread_nor_file_is_left():
    gc.collect()
    assert wait_until(lambda: not spill_threads())  # those of other tests
    before = open_files()
    file = SpillFile()
    away = [file.send(random_bytes(100_000)) for _ in range(5)]
    assert open_files() == before + 1
    assert spill_threads()
    del file, away
    gc.collect()
    assert wait_until(lambda: not spill_threads() and open_files() == before)


@pytest.mark.usefixtures("_by_a_thread")
def test_where_no_thread_can_be_started_bytes_are_written_at_once(monkeypatch):

    def fail(self):
        raise RuntimeError("can't start new thread")

    file, parts = SpillFile(), random_bytes(1000, 70_000)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        away = file.send(parts)
        away.settle()
        assert all(map(torch.equal, away.bring().settle(), parts))
        away.free()
    others = random_bytes(1000, 70_000)
    away = file.send(others)  # by a thread, which knows nothing of what was written before
    away.settle()
    assert all(map(torch.equal, away.bring().settle(), others))
