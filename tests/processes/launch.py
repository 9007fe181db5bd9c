"""Starts a script in several processes, as torchrun does, and waits for them with a time limit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_processes(script: Path, count: int, folder: Path, limit: float = 120.0) -> list[str]:
    """What each process printed; an error shows the output of the one that failed."""
    rendezvous = folder / "rendezvous"
    started = [
        _start(script, rank, count, rendezvous, folder / f"{rank}.log") for rank in range(count)
    ]
    end = time.monotonic() + limit
    try:
        codes = [process.wait(max(0.0, end - time.monotonic())) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    texts = [(folder / f"{rank}.log").read_text(encoding="utf-8") for rank in range(count)]
    for rank, (code, text) in enumerate(zip(codes, texts, strict=True)):
        assert code == 0, f"process {rank} failed:\n{text}"
    return texts


def _start(
    script: Path, rank: int, count: int, rendezvous: Path, log: Path
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
        return subprocess.Popen(
            [sys.executable, str(script)], env=environment, stdout=output, stderr=output
        )
