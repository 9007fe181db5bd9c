"""Where a measurement was made: enough to tell two results apart, and nothing that names a host."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import torch

from penstock.run.fused.setting import Fusion


def describe_environment(device: str = "cpu") -> dict[str, str | int]:
    """Commit, date, processor, the device that was measured, versions, threads, and when
    blocks are compiled.
    """
    return {
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "fusion": Fusion.mode,
    }


def _commit() -> str:
    """The commit, with `+` where the tree differs from it; `unknown` outside a checkout.

    RESULTS.md does not count: recording one script must not mark the next one.
    """
    commit = _git("rev-parse", "--short", "HEAD")
    if not commit:
        return "unknown"
    changes = _git("status", "--porcelain", "--", ":/", ":(exclude)RESULTS.md")
    return commit + ("+" if changes else "")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()
