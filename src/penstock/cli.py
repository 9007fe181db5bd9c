"""The command `penstock`.

Only arguments and exit codes live here; what a subcommand does is in a module of its own, imported
when it is asked for, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

_DESCRIPTION = """\
Penstock runs PyTorch programs whose control flow depends on the data. You write the program for
one example; Penstock runs it for many at once, batched just in time.
"""

_DEMO = """\
Encode made-up binary trees with a recursive Tree-LSTM, twice: one tree after the other in plain
PyTorch, then all together through Penstock. The program is the same recursion both times; it is
short, and it is in penstock/nn/tree_lstm.py. Both results are compared, then both speeds.
"""

_EXAMPLES = """\
examples:
  penstock demo                   512 trees, hidden size 150; under a minute
  penstock demo --trees 5000      more trees
  penstock demo --hidden 512      larger states

exit status: 0 if both ways agree, 1 if they differ, 2 if the arguments are wrong.
"""


_DOCTOR = """\
Say what is installed here and what each part gives: versions, devices, compilers, optional
packages; then run a small program. Start here when something does not work.

exit status: 0 if programs can run, 1 if something that is needed is missing or wrong.
"""

_STATS = """\
Count the programs that contain conditionals and loops. A path is a file or a folder: Python source
(.py), exported torch graphs (.pt2, and .ts or .pt for TorchScript) or ONNX models (.onnx). Nothing
is run. In folders .pt files are left out, since most hold weights: name them.

Python source is counted as it is written: the models of a file (classes with a forward, functions
under ps.function and the like), without conditions that only read attributes of self.
"""

_STATS_EXAMPLES = """\
examples:
  penstock stats src examples     all programs in two folders
  penstock stats model.onnx       one exported graph

exit status: 0 if everything could be read, 1 if not, 2 if the arguments are wrong.
"""


_TARGET = """\
FILE.py:function names a function of a Python file, or a method of an object in it. What it is run
on is a module-level name of that file:

  example_inputs = (x, y)          one call, with these arguments
  example_inputs = [a, b, c]       many instances; several arguments are tuples: [(x, 1), (y, 2)]
  example_inputs = {"f": ..., }    the same, by the name of the function

A function without arguments that returns one of these will do as well.
"""

_EXPLAIN = """\
Run a function on the examples of its file; print its program, a table of what was launched, and
what limited batching.
"""

_VIEW = """\
Run a function on the examples of its file and write one HTML page that needs no network: the
program, its graph of primitives, the schedule in time with the width of each launch, and the rows
of an instance coloured by launch. Needs the extra: pip install 'penstock[view]'
"""

_EXPLAIN_EXAMPLES = f"""\
{_TARGET}
examples:
  penstock explain train.py:encode
  penstock explain model.py:model.forward

exit status: 0 if it ran, 1 if it failed, 2 if the arguments are wrong.
"""

_VIEW_EXAMPLES = f"""\
{_TARGET}
examples:
  penstock view train.py:encode -o encode.html
  penstock view model.py:model.forward

exit status: 0 if the page was written, 1 if not, 2 if the arguments are wrong.
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line, with the help that teaches it."""
    parser = argparse.ArgumentParser(prog="penstock", description=_DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, about: str, description: str, epilog: str = "") -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = commands.add_parser(
            name,
            help=about,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        return command

    demo = add("demo", "a recursive Tree-LSTM, per sample and batched", _DEMO, _EXAMPLES)
    demo.add_argument("--trees", type=_at_least_one, default=512, help="how many (default 512)")
    demo.add_argument("--hidden", type=_at_least_one, default=150, help="size of h (default 150)")
    demo.add_argument("--seed", type=int, default=0, help="of trees and weights (default 0)")
    add("doctor", "what is installed here, and whether programs run", _DOCTOR)
    about = "how many programs contain conditionals and loops"
    stats = add("stats", about, _STATS, _STATS_EXAMPLES)
    stats.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a file or a folder")
    about = "what a function of a file launched, and what limited batching"
    explain = add("explain", about, _EXPLAIN, _EXPLAIN_EXAMPLES)
    view = add("view", "the same as a page with pictures", _VIEW, _VIEW_EXAMPLES)
    for command in (explain, view):
        command.add_argument("target", metavar="FILE.py:function", help="what to run")
    view.add_argument(
        "-o", "--output", type=Path, default=Path("penstock.html"), help="(default penstock.html)"
    )
    # Its arguments, --help among them, are for the scripts to read.
    commands.add_parser(
        "bench", help="benchmarks of a source checkout; see penstock bench --help", add_help=False
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = build_parser()
    options, rest = parser.parse_known_args(arguments)
    if options.command == "bench":
        from penstock.bench import run_bench

        return run_bench(rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    """Call the module that a subcommand stands for."""
    if options.command == "doctor":
        from penstock.doctor import run_doctor

        return run_doctor()
    if options.command == "stats":
        from penstock.stats.report import run_stats

        return run_stats(options.paths)
    if options.command == "explain":
        from penstock.seeing import run_explain

        return run_explain(options.target)
    if options.command == "view":
        from penstock.seeing import run_view

        return run_view(options.target, options.output)
    from penstock.demo import run_demo

    return run_demo(trees=options.trees, hidden=options.hidden, seed=options.seed)


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
