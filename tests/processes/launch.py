"""Starts a script in several processes, as torchrun does, and waits for them with a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_processes(
    script: Path,
    count: int,
    folder: Path,
    limit: float = 120.0,
    arguments: Sequence[str] = (),
) -> list[str]:
    """What each process printed; an error shows the output of the one that failed."""
    started = start_processes(script, count, folder, arguments)
    codes, texts = end_processes(started, folder, limit)
    for rank, (code, text) in enumerate(zip(codes, texts, strict=True)):
        assert code == 0, f"process {rank} failed:\n{text}"
    return texts


def start_processes(
    script: Path, count: int, folder: Path, arguments: Sequence[str] = ()
) -> list[subprocess.Popen[bytes]]:
    """Start all ranks of a job."""
    command = [sys.executable, "-X", "faulthandler", str(script), *arguments]
    rendezvous = folder / "rendezvous"
    return [_start(command, rank, count, rendezvous, _log(folder, rank)) for rank in range(count)]


def end_processes(
    started: list[subprocess.Popen[bytes]], folder: Path, limit: float
) -> tuple[list[int], list[str]]:
    """How each process ended, and what it printed; none is left behind. Those that are late print
    where their threads are.
    """
    end = time.monotonic() + limit
    is_late = False
    try:
        codes = [process.wait(max(0.0, end - time.monotonic())) for process in started]
    except subprocess.TimeoutExpired:
        is_late = True
        for process in started:
            process.send_signal(signal.SIGABRT)
        time.sleep(1.0)
    finally:
        for process in started:
            process.kill()
            process.wait()
    texts = [_log(folder, rank).read_text(encoding="utf-8") for rank in range(len(started))]
    assert not is_late, "\n".join([f"after {limit} s there were processes left:", *texts])
    return codes, texts


def _log(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.log"


def _start(
    command: Sequence[str], rank: int, count: int, rendezvous: Path, log: Path
) -> subprocess.Popen[bytes]:
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        "RENDEZVOUS": rendezvous.as_uri(),
    }
    with log.open("wb") as output:
        return subprocess.Popen(command, env=environment, stdout=output, stderr=output)
