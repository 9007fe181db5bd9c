"""Runs benchmarks one after the other: `penstock bench`, or `python -m benchmarks`.

Each runs in a process of its own, so that none is measured in what another left behind. The quick
selection takes minutes, the full one some hours. What was measured is written to benchmarks/out;
RESULTS.md changes only with --record.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from time import perf_counter

from benchmarks.results import RESULTS

#: The options of each script for a first impression; what is given by hand comes after and wins.
QUICK: dict[str, str] = {
    "plan": "--rounds 5",
    "growth": "--trees 10 100 1000 --rounds 3",
    "tree_inference": "--hidden 150 --batches 1 256 --rounds 3",
    "tree_training": "--hidden 150 --batches 1 64 --rounds 3",
    "tree_gpu": "--hidden 256 --batches 256 --modes training --rounds 3",
    "child_sum": "--hidden 150 --batches 64 --rounds 3",
    "lstm": "--rounds 3",
    "lstm_gpu": "--rounds 3",
    "counted_loop": "--batches 64 --rounds 5",
    "while_gpu": "--rounds 3",
    "parallel_iterations": "--rounds 3",
    "pipeline_lstm": "--rounds 3",
    "in_graph_training": "--agents 64 --rounds 3",
    "distributed_loop": "--processes 1 2 --rounds 3",
    "gradient_overhead": "--rounds 3",
    "memory": "--rounds 3 --indexed-lengths 250 500 1000",
    "swap_lstm": "--lengths 50 200 --rounds 3",
    "swap_heavy": "--lengths 16",
    "swap_tree": "--leaves 200 --rounds 3",
    "long_loop": "--iterations 10000 --rounds 3",
    "native_loops": "--rounds 3 --iterations 50000",
    "tracing": "--rounds 5",
    "profile_overhead": "--batches 64 --rounds 3",
    "recording": "--rounds 5",
    "granularity": "--batch 16 --rounds 1",
    "ragged_attention": "--hidden 128 --rounds 3",
    "eager_map": "--batches 256 --granularities op auto --rounds 2",
}

#: And for figures to be kept.
FULL: dict[str, str] = {
    "plan": "--rounds 15 --large",
    "growth": "",
    "tree_inference": "",
    "tree_training": "",
    "tree_gpu": "",
    "child_sum": "",
    "lstm": "",
    "lstm_gpu": "",
    "counted_loop": "",
    "while_gpu": "",
    "parallel_iterations": "",
    "pipeline_lstm": "",
    "in_graph_training": "",
    "distributed_loop": "",
    "gradient_overhead": "",
    "memory": "",
    "swap_lstm": "--lengths 100 200 500 1000 2000",
    "swap_heavy": "--lengths 32",
    "swap_tree": "--leaves 500 2000",
    "long_loop": "--full",
    "native_loops": "--compiled",
    "tracing": "",
    "profile_overhead": "",
    "recording": "",
    "ragged_attention": "--eager",
    "granularity": "--plot",
    "eager_map": "",
}

USAGE = "penstock bench [NAME ...] [--list] [--full] [--record [FILE]] [options of the scripts]"

EXAMPLES = """\
examples:
  penstock bench                                     the quick selection, all scripts
  penstock bench --list                              what there is
  penstock bench lstm                                one script, quickly
  penstock bench lstm --full --threads 2 --record    all sizes, two threads, kept in RESULTS.md
  penstock bench tree_training --batches 64 256      options of a script go to the script
  penstock bench tree_training --help                and this lists them

exit status: 0 if all scripts ran, 1 if one failed, 2 if the arguments are wrong.
"""


def run_all(selection: dict[str, list[str]]) -> list[str]:
    """Run scripts; the names of those that failed."""
    failed = []
    for number, (name, options) in enumerate(selection.items(), start=1):
        print(f"== [{number}/{len(selection)}] {name} {' '.join(options)}", flush=True)
        begin = perf_counter()
        command = [sys.executable, "-m", f"benchmarks.{name}", *options]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
        print(f"== {name} took {perf_counter() - begin:,.0f} s", flush=True)
    return failed


def claim_of(name: str) -> str:
    """The first line of a script, without loading it."""
    text = (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0].removeprefix("Claim: ")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selection; the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    names = list(takewhile(lambda word: not word.startswith("-"), words))
    parser = _parser()
    options, rest = parser.parse_known_args(words[len(names) :])
    for name in names:
        if name not in QUICK:
            parser.error(_unknown(name))
    if options.help and not names:
        parser.print_help()
        return 0
    if options.list:
        for name in names or QUICK:
            print(f"{name:<18} {claim_of(name)}")
        return 0
    failed = run_all(_selection(names, options, rest))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock bench",
        usage=USAGE,
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("--list", action="store_true", help="the scripts and their claims")
    parser.add_argument("--full", action="store_true", help="all sizes and rounds")
    parser.add_argument(
        "--record", type=Path, nargs="?", const=RESULTS, help="keep the figures in RESULTS.md"
    )
    parser.add_argument("-h", "--help", action="store_true", help="this; after a NAME, of a script")
    return parser


def _unknown(name: str) -> str:
    near = get_close_matches(name, QUICK, n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    return f"there is no script {name!r}.{meant} There are: {', '.join(QUICK)}."


def _selection(
    names: list[str], options: argparse.Namespace, rest: list[str]
) -> dict[str, list[str]]:
    """The options of each script: those of the selection, then those that were given."""
    given = [*rest, *(["--help"] if options.help else [])]
    given += ["--record", str(options.record)] if options.record else []
    chosen = FULL if options.full else QUICK
    return {name: [*chosen[name].split(), *given] for name in names or QUICK}


if __name__ == "__main__":
    sys.exit(main())
