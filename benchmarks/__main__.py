"""Runs the benchmarks one after the other and records them: `python -m benchmarks`.

Each runs in a process of its own, so that none is measured in what another left behind. The quick
selection takes minutes, the full one the better part of an hour.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import RESULTS

#: The options of each script for a first impression.
QUICK: dict[str, str] = {
    "plan": "--rounds 5",
    "tree_inference": "--rounds 5",
    "tree_training": "--hidden 150 --batches 25 256 --rounds 3",
    "tree_gpu": "--batches 256 --rounds 3",
    "gradient_overhead": "--rounds 3",
    "memory": "--rounds 3 --indexed-lengths 250 500 1000",
    "long_loop": "--iterations 10000 --rounds 3",
    "tracing": "--rounds 5",
    "recording": "--rounds 5",
    "granularity": "--batch 16 --rounds 1",
    "ragged_attention": "--hidden 128 --rounds 3",
    "eager_map": "--batches 256 --granularities op auto --rounds 2",
}

#: And for figures to be kept.
FULL: dict[str, str] = {
    "plan": "--rounds 15 --large",
    "tree_inference": "--hidden 150 256",
    "tree_training": "--compiled",
    "tree_gpu": "",
    "gradient_overhead": "",
    "memory": "",
    "long_loop": "--full",
    "tracing": "",
    "recording": "",
    "ragged_attention": "--eager",
    "granularity": "--plot",
    "eager_map": "",
}


def run_all(selection: dict[str, str], results: Path) -> list[str]:
    """Run scripts; the names of those that failed."""
    failed = []
    for name, options in selection.items():
        print(f"== python -m benchmarks.{name} {options}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", *options.split()]
        if subprocess.run([*command, "--record", str(results)], check=False).returncode:
            failed.append(name)
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selection; 1 if a script failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all sizes and rounds")
    parser.add_argument("--only", nargs="+", choices=list(QUICK), default=list(QUICK))
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file to record in")
    options = parser.parse_args(arguments)
    selection = FULL if options.full else QUICK
    failed = run_all({name: selection[name] for name in options.only}, options.results)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
