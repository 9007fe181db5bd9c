"""Training steps under memory policies, for several scripts: which can be run at all, and what they
hold at most.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

import penstock as ps
from benchmarks.baselines.training import Forward
from benchmarks.figures import Figures, rounded
from benchmarks.harness import wait_for_devices
from benchmarks.inside import most_saved_bytes
from penstock.run.memory.exhaustion import is_out_of_memory

POLICIES = ("keep", "swap", "recompute", "auto")

#: From a forward computation to a training step.
Train = Callable[[Forward], Any]


def under_policies(forward: Forward, budget: int) -> dict[str, Forward]:
    """The computation under each policy."""
    return {f"penstock, {policy}": partial(_under, policy, budget, forward) for policy in POLICIES}


def _under(policy: str, budget: int, forward: Forward) -> Any:
    with ps.memory(policy, budget=None if policy == "keep" else budget):
        return forward()


def split_by_memory(
    forwards: Mapping[str, Forward], train: Train
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """The training steps that can be run, and those that run out of memory."""
    able: dict[str, Callable[[], Any]] = {}
    unable: dict[str, str] = {}
    for name, forward in forwards.items():
        candidate = partial(train, forward)
        try:
            candidate()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            unable[name] = "out of memory"
        else:
            able[name] = candidate
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return able, unable


def most_bytes(candidate: Callable[[], Any], device: str) -> int | None:
    """Bytes that a training step holds at most: on a GPU all that it allocates, on a CPU what is
    saved for backward, which is known of Penstock's own steps.
    """
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        candidate()
        return torch.cuda.max_memory_allocated()
    return most_saved_bytes(candidate)


@dataclass(frozen=True)
class Trial:
    """What one candidate did, alone in memory."""

    #: Of one call, in every round.
    seconds: list[float]
    #: Bytes held at most; None where that is not known.
    held: int | None
    #: The loss and the gradients.
    result: tuple[Tensor, ...]


def try_alone(candidate: Callable[[], Any], device: str, calls: int, rounds: int) -> Trial | None:
    """Make some calls first, then time some; None where memory runs out.

    Candidates are not interleaved: a plan that has become a CUDA graph holds its memory.
    """
    try:
        for _ in range(calls):
            result = candidate()
        seconds, on_gpu = [], device == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        for _ in range(rounds):
            wait_for_devices()
            began = perf_counter()
            candidate()
            wait_for_devices()
            seconds.append(perf_counter() - began)
        held = torch.cuda.max_memory_allocated() if on_gpu else most_saved_bytes(candidate)
        return Trial(seconds, held, tuple(t.detach().cpu() for t in result))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None


def make_room() -> None:
    """Give back what earlier candidates have left."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def by_length(
    title: str,
    trials: Mapping[int, Mapping[str, Trial | None]],
    cell: Callable[[int, Trial], str],
) -> Figures:
    """One row for each candidate, one column for each length; "-" where it ran out of memory."""
    names = list(next(iter(trials.values())))
    rows = []
    for name in names:
        found = ((length, each[name]) for length, each in trials.items())
        cells = ("-" if trial is None else cell(length, trial) for length, trial in found)
        rows.append((name, *cells))
    return Figures(title, ("candidate", *(f"{n:,}" for n in trials)), tuple(rows))


def in_mebibytes(size: int | None) -> str:
    """For a table."""
    return "-" if size is None else rounded(size / 2**20)
