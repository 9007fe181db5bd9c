"""Claim: planning time grows no faster than the number of trees.

`f.schedule(trees)` of a recursive program, from binding the arguments to the last instruction,
for random binary trees of about 25 leaves; by native code, and by the plain machine. The
yardsticks are written for this one program: the level structure of b (which nodes run together,
and where their children are) and that of b+ (also which states are still needed, and where they
move). All find the same number of launches.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from statistics import median

from benchmarks.baselines.levels import levels_of, needed_levels_of
from benchmarks.baselines.tree_lstm import TreeLSTM
from benchmarks.figures import Figures, rounded
from benchmarks.harness import Comparison, compare, ratios
from benchmarks.inside import planner_of
from benchmarks.script import run_script
from benchmarks.size_plots import times_by_size
from penstock.data import Tree, random_binary_trees
from penstock.plan.planners import planning

HEADINGS = (
    "trees",
    "nodes",
    "firings",
    "launches",
    "ms",
    "planner alone",
    "ns a node",
    "times plain",
    "times b",
    "times b+",
)


def measure_trees(trees: list[Tree], rounds: int) -> tuple[Comparison, tuple[str, ...]]:
    """Planning for these trees, in full and as one line."""
    program = TreeLSTM(embedding=4, hidden=4).forward
    nodes = sum(map(len, trees))
    schedule = program.schedule(trees)
    with planning("always"):
        plan = planner_of(program, trees)

    def launches(mode: str) -> int:
        with planning(mode):
            return len(program.schedule(trees).launches)

    result = compare(
        f"planning {len(trees):,} trees",
        {
            "penstock": lambda: launches("always"),
            "planner alone": plan,
            "plain machine": lambda: launches("never"),
            "levels of b": lambda: 1 + len(levels_of(trees).children),
            "levels of b+": lambda: 1 + len(needed_levels_of(trees).steps),
        },
        reference="levels of b+",
        work=nodes,
        unit="nodes",
        rounds=rounds,
    )
    own = result["penstock"]
    counts = (len(trees), nodes, schedule.firings, len(schedule.launches))
    seconds = median(own.seconds)
    alone = median(result["planner alone"].seconds)
    others = ("plain machine", "levels of b", "levels of b+")
    times = [median(ratios(own, result[name])) for name in others]
    figures = (1e3 * seconds, 1e3 * alone, 1e9 * alone / nodes, *times)
    return result, (*(f"{count:,}" for count in counts), *map(rounded, figures))


def measure(options: argparse.Namespace) -> Iterator[Comparison | Figures]:
    """All sizes, and a line of each."""
    lines = []
    for count in [*options.trees, *([10_000] if options.large else [])]:
        result, line = measure_trees(random_binary_trees(count, seed=count), options.rounds)
        lines.append(line)
        yield result
    yield Figures("planning", HEADINGS, tuple(lines))


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.add_argument("--trees", type=int, nargs="+", default=[1, 10, 25, 100, 256, 1000])
    parser.add_argument("--large", action="store_true", help="also 10,000 trees")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("plan", __doc__, add_options, measure, arguments, draw=times_by_size)


if __name__ == "__main__":
    main()
