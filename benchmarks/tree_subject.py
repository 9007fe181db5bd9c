"""The binary Tree-LSTM over one batch of trees, and all ways to run it, for several scripts.

Candidates take trees as they are read; what they make of their structure is part of a call. The
exceptions say so in their names: a known plan, a ready schedule.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count, cycle
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.baselines import tree_lstm
from benchmarks.baselines.arena import ArenaSchedule
from benchmarks.baselines.compiled import add_compiled_option, twin_if_wanted
from benchmarks.baselines.levels import forest_arrays, levels_of, needed_levels_of
from benchmarks.baselines.products import Layer
from benchmarks.baselines.training import Forward
from benchmarks.inside import planned_anew
from benchmarks.peers.process import Peer, parameters_in, peers_for
from penstock.data import Tree, random_binary_trees

REFERENCE = "by level, needed (b+)"
KNOWN = "penstock, known plan"
COMPILED = "by level, needed, compiled (c+)"
LOADED = "penstock, collated by a loader"
LOADING = "penstock, a loader at work"
LEVELS_LOADED = "by level, needed, levels from a loader"

#: Orders of a batch that come one after the other where structure is to be fresh.
TURNS = 8

#: Processes of a loader, where there are cores for them, and batches that each has ready.
WORKERS, READY = min(8, os.cpu_count() or 1), 2

NOTES = {
    "structure": "timed for every candidate but `known plan`, whose trees were seen before",
    "products alone": "in the shapes of the levels",
}


def in_turn(call: Callable[..., Tensor], batches: Sequence[object]) -> Forward:
    """Calls that take one batch after the other, turned back to the order of the first."""
    numbers = cycle(range(len(batches)))

    def run() -> Tensor:
        number = next(numbers)
        return call(batches[number], out="stack").roll(number, 0)

    return run


class Turns(IterableDataset[Any]):
    """Batches without end, prepared by workers that take turns."""

    def __init__(self, batches: Sequence[object], prepare: Callable[[Any], object]) -> None:
        self.batches, self.prepare = batches, prepare

    def __iter__(self) -> Iterator[object]:
        """What one of the workers prepares."""
        worker = get_worker_info()
        assert worker is not None
        for number in count(worker.id, worker.num_workers):
            yield self.prepare(self.batches[number % len(self.batches)])


class TreeSubject:
    """A model, a batch, and its candidates."""

    def __init__(
        self,
        model: tree_lstm.TreeLSTM,
        trees: list[Tree],
        twin: tree_lstm.TreeLSTM | None = None,
        missing: Mapping[str, str] | None = None,
    ) -> None:
        self.model, self.trees, self.twin = model, trees, twin
        #: Candidates that cannot be run here, and why.
        self.missing = dict(missing or {})

    def forwards(self) -> dict[str, Forward]:
        """Every way to compute the roots' states by autograd."""
        return {**self._penstock(), **self._by_hand()}

    def _penstock(self) -> dict[str, Forward]:
        program, trees = self.model.forward, self.trees

        def known() -> Tensor:
            return program.map(trees, out="stack")  # type: ignore[no-any-return]

        return {"penstock": planned_anew(in_turn(program.map, self._turned())), KNOWN: known}

    def _turned(self) -> list[list[Tree]]:
        """The batch in other orders, each a structure of its own, with the trees moved to the front
        as often as its number says.
        """
        count = min(len(self.trees), TURNS)
        return [self.trees[k:] + self.trees[:k] for k in range(count)]

    def _by_hand(self) -> dict[str, Forward]:
        model, trees, twin = self.model, self.trees, self.twin
        # Made where they are wanted: the collector of garbage would look at them in all candidates.
        nodes = cache(lambda: [tree.to_nodes() for tree in trees])
        found: dict[str, Forward] = {
            "per sample (a)": lambda: tree_lstm.per_sample(model, nodes()),
            "by level (b)": lambda: tree_lstm.by_level(model, levels_of(trees)),
            REFERENCE: lambda: tree_lstm.by_level_needed(model, needed_levels_of(trees)),
        }
        if twin is not None:
            found["by level, compiled (c)"] = lambda: tree_lstm.by_level(twin, levels_of(trees))
            found[COMPILED] = lambda: tree_lstm.by_level_needed(twin, needed_levels_of(trees))
        return found

    def loaded(self) -> dict[str, Forward]:
        """Ways to run batches whose structure a DataLoader's worker has prepared."""
        model, program = self.model, self.model.forward
        batches, levels = list(map(program.collate, self._turned())), needed_levels_of(self.trees)
        return {
            LOADED: planned_anew(in_turn(program.map, batches)),
            LEVELS_LOADED: lambda: tree_lstm.by_level_needed(model, levels),
        }

    def loading(self) -> Forward:
        """The same with a loader whose processes plan while earlier batches run."""
        program, turned = self.model.forward, self._turned()
        work = Turns(turned, program.collate)
        loader = DataLoader(work, batch_size=None, num_workers=WORKERS, prefetch_factor=READY)
        batches, numbers = iter(loader), cycle(range(len(turned)))

        def run() -> Tensor:
            found: Tensor = program.map(next(batches), out="stack")
            return found.roll(next(numbers), 0)

        return planned_anew(run)

    def schedule(self) -> ArenaSchedule:
        """The schedule made by hand for these trees."""
        return ArenaSchedule(self.model, levels_of(self.trees))

    @contextmanager
    def peers(
        self, weights: Tensor, *, training: bool, wanted: bool
    ) -> Iterator[tuple[dict[str, Peer], dict[str, str]]]:
        """Other systems at the same work, and those that could not be started."""
        arrays = {**parameters_in(self.model), **forest_arrays(self.trees)}
        problem = {**arrays, "weights": weights.numpy(), "training": training}
        with peers_for("trees", problem, wanted=wanted) as found:
            yield found

    def notes(self) -> dict[str, str]:
        """What a reader must know, and how many leaves are those of one word: Penstock computes
        equal leaves once, all others and the floor as often as they occur.
        """
        words = torch.cat([tree.token[tree.start.diff() == 0] for tree in self.trees])
        distinct, leaves = len(torch.unique(words)), len(words)
        shared = f"batch {len(self.trees)} has {distinct:,} among {leaves:,} leaves, the floor all"
        return {**NOTES, "distinct words": shared}

    def layers(self) -> list[Layer]:
        """The products of one run."""
        return tree_lstm.layers(self.model, levels_of(self.trees))


def subjects(options: argparse.Namespace) -> Iterator[tuple[int, TreeSubject]]:
    """All hidden sizes and batches; those of one size share the model, compiled once."""
    for hidden in options.hidden:
        torch.manual_seed(0)
        model = tree_lstm.TreeLSTM(hidden=hidden).to(options.device)
        twin, fault = twin_if_wanted(options, model, "cell", device=options.device)
        missing = {COMPILED: fault} if fault else {}
        for batch in options.batches:
            trees = random_binary_trees(batch, seed=batch)
            yield hidden, TreeSubject(model, trees, twin, missing)


def add_tree_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.add_argument("--hidden", type=int, nargs="+", default=[150, 256])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 10, 25, 64, 256])
    add_compiled_option(parser)
