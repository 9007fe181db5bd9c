"""Claim: coarser steps cost less to record and plan, and rank order makes the fewest launches.

The trade-off of just-in-time dynamic batching (Zha et al., 2018) for eager code under ps.map,
without gradients: a finer granularity finds more to run together, and has more to look at.
Child-sum Tree-LSTM on SICK's pairs, binary Tree-LSTM on ListOps and on random trees; made-up trees
where PENSTOCK_DATA does not lead to the data. Analysis is timed with an empty cache of plans
(cold), and with the plan of the same structure in it (warm). Steps are known in both.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

import penstock as ps
from benchmarks import corpora
from benchmarks.baselines import child_sum, tree_lstm
from benchmarks.breakdown import Breakdown, break_down
from benchmarks.eager_map import GRANULARITIES
from benchmarks.figures import Figures, rounded
from benchmarks.inside import POLICIES, forget_plans, policy
from benchmarks.plots import Panel, stacked_bars
from benchmarks.script import run_script

PLOT = Path(__file__).parent / "granularity.svg"

HEADINGS = (
    "granularity",
    "policy",
    "steps",
    "launches",
    "mean width",
    "recording ms",
    "analysis ms, cold",
    "analysis ms, warm",
    "execution ms",
)


@dataclass(frozen=True)
class Subject:
    """Eager code for one instance, and its columns."""

    title: str
    code: Callable[..., Any]
    columns: list[list[Any]]


def pair_subject(count: int, hidden: int) -> Subject:
    """Relatedness of SICK's pairs."""
    corpus = corpora.sick(count)
    torch.manual_seed(0)
    model = child_sum.Relatedness(corpus.vocabulary, hidden=hidden)
    sides = zip(*child_sum.sentences_of(corpus.pairs), strict=True)
    return Subject(f"{corpus.source}, {count} pairs", model, [list(side) for side in sides])


def tree_subject(name: str, count: int, hidden: int) -> Subject:
    """Binary trees."""
    corpus = corpora.BINARY[name](count)
    torch.manual_seed(0)
    model = tree_lstm.TreeLSTM(corpus.vocabulary, hidden=hidden)
    roots = [tree.to_nodes() for tree in corpus.trees]
    return Subject(f"{corpus.source}, {count} trees", partial(tree_lstm.recurse, model), [roots])


SUBJECTS: dict[str, Callable[[int, int], Subject]] = {
    "sick": pair_subject,
    "listops": partial(tree_subject, "listops"),
    "random": partial(tree_subject, "random"),
}


@dataclass(frozen=True)
class Case:
    """One granularity and policy, measured with an empty and with a filled cache of plans."""

    granularity: str
    policy: str
    cold: Breakdown
    warm: Breakdown

    def row(self) -> tuple[str, ...]:
        """A line of the table."""
        cold, warm = self.cold, self.warm
        counts = (f"{cold.steps:,.0f}", f"{cold.launches:,.0f}", rounded(cold.width))
        seconds = (warm.recording, cold.planning, warm.planning, warm.executing)
        times = [rounded(1e3 * part) for part in seconds]
        return (self.granularity, self.policy, *counts, *times)

    def bar(self) -> tuple[str, tuple[float, ...]]:
        """A bar of the plot."""
        seconds = (self.warm.recording, self.cold.planning, self.warm.executing)
        return f"{self.granularity}, {self.policy}", tuple(1e3 * part for part in seconds)


def measure_case(subject: Subject, granularity: str, policy_name: str, rounds: int) -> Case:
    """Cold and warm calls of one case."""

    def call() -> Any:
        return ps.map(subject.code, *subject.columns, granularity=granularity)

    with policy(policy_name):
        call()  # what is learned of the code and built for it is no part of this
        cold = break_down(call, rounds=rounds, prepare=forget_plans)
        warm = break_down(call, rounds=rounds)
    return Case(granularity, policy_name, cold, warm)


def measure(options: argparse.Namespace) -> Iterator[Figures]:
    """A table for each kind of tree, and the plot of all."""
    panels = []
    with torch.no_grad():
        for name in options.trees:
            subject = SUBJECTS[name](options.batch, options.hidden)
            cases = [
                measure_case(subject, *each, options.rounds)
                for each in product(options.granularities, options.policies)
            ]
            panels.append(Panel(subject.title, tuple(case.bar() for case in cases)))
            yield Figures(subject.title, HEADINGS, tuple(case.row() for case in cases))
    if options.plot:
        parts = ("recording", "analysis, cold", "execution")
        text = stacked_bars("Milliseconds of a call under ps.map", parts, panels)
        options.plot.write_text(text, encoding="utf-8")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.set_defaults(rounds=5)
    parser.add_argument("--trees", nargs="+", choices=list(SUBJECTS), default=list(SUBJECTS))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=150)
    parser.add_argument(
        "--granularities", nargs="+", choices=GRANULARITIES, default=list(GRANULARITIES)
    )
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument(
        "--plot", type=Path, nargs="?", const=PLOT, help=f"draw to a file, {PLOT.name} unless named"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("granularity", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
