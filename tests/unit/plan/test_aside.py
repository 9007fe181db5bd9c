"""A process that compiles the planner while others go on."""

from __future__ import annotations

import os
import subprocess
from time import monotonic, sleep, time

import pytest

from penstock.plan import planners
from penstock.plan.native import aside, kept_code

#: What the process does, with something quick in the place of the compiler.
QUICK = """
from penstock.plan import planners
from penstock.plan.native import aside, kept_code
planners.load_native = kept_code.note_compiled
aside.compile_here()
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.setattr(aside, "_started", [])
    return kept_code.cache_folder()


@pytest.fixture
def no_process(monkeypatch):
    """Processes are noted, not started."""
    started = []

    def start(command, **options):
        started.append(command)
        return _Over()

    monkeypatch.setattr(subprocess, "Popen", start)
    return started


class _Over:
    def poll(self):
        return 0


def test_a_process_compiles_and_ends(monkeypatch):
    monkeypatch.setattr(aside, "_CODE", QUICK)
    assert aside.start()
    assert aside.is_under_way()
    until = monotonic() + 60
    while aside.is_under_way() and monotonic() < until:
        sleep(0.05)
    assert not aside.is_under_way()
    assert kept_code.is_compiled()
    assert [process.wait(timeout=60) for process in aside._started] == [0]


def test_one_process_at_a_time(no_process):
    assert aside.start()
    assert not aside.start()
    assert len(no_process) == 1


def test_the_claim_of_a_process_that_was_stopped_lapses(no_process, folder):
    assert aside.start()
    long_ago = time() - aside.SECONDS - 1
    os.utime(folder / aside.CLAIM, (long_ago, long_ago))
    assert not aside.is_under_way()
    assert aside.start()
    assert aside.is_under_way()


def test_a_compiler_that_fails_leaves_no_claim(no_process, monkeypatch):
    def fail() -> None:
        raise RuntimeError("no")

    assert aside.start()
    monkeypatch.setattr(planners, "load_native", fail)
    monkeypatch.setattr(os, "nice", lambda by: None)
    with pytest.raises(RuntimeError, match="no"):
        aside.compile_here()
    assert not aside.is_under_way()


def test_without_room_for_a_process_there_is_no_claim(monkeypatch):
    def fail(*args, **options):
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", fail)
    assert not aside.start()
    assert not aside.is_under_way()


def test_where_code_cannot_be_kept_no_process_is_started(no_process, monkeypatch):
    monkeypatch.setattr(aside, "can_keep", lambda folder: False)
    assert not aside.start()
    assert no_process == []
