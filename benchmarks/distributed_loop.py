"""Claim: a loop over several processes runs within 1.5 times of bare messages between them.

Each process carries one number and changes it trivially in every iteration. With a predicate that
one rank computes, there is a broadcast for each iteration; in step, the predicate needs the numbers
of all ranks, so that they meet in each; with a count that is known there is nothing to say. Beside
it, in the same processes and rounds, what gloo needs for a bare broadcast and a bare barrier. Calls
follow the plan of an earlier one as long as they read the same; "other ends" are calls that do not,
and plan all iterations. What a call costs besides its loop (ranks compare what they are about to
do, results go to all) is a line of its own: calls of a counted loop that does nothing. All loops
but counted ones are short where processes outnumber the cores, since they take long there.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing

from benchmarks.figures import Figures, Spread
from benchmarks.programs import ring
from benchmarks.script import run_script

#: What each loop is compared with.
FLOORS = {
    "predicate": "bare broadcast",
    "predicate, other ends": "bare broadcast",
    "in step": "bare barrier",
}


#: Calls of a loop that does nothing.
EMPTY, CALLS = "calls of no iterations", 20


def measure(options: argparse.Namespace) -> Iterator[Figures]:
    """All numbers of processes."""
    cores = os.cpu_count() or 1
    for size in options.processes:
        iterations = options.iterations // -(-size // cores)
        found = _run(size, iterations, options.counted, options.rounds)
        yield _figures(size, found, iterations, options.counted)


def _run(size: int, iterations: int, steps: int, rounds: int) -> dict[str, list[float]]:
    """The seconds of each candidate in each round, as rank 0 saw them."""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        workers = [
            context.Process(target=work, args=(rank, size, folder, iterations, steps, rounds))
            for rank in range(size)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        found: dict[str, list[float]] = json.loads((Path(folder) / "seconds").read_text())
    return found


def work(rank: int, size: int, folder: str, iterations: int, steps: int, rounds: int) -> None:
    """One rank: all candidates, round by round, everywhere in the same order."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size
    )
    candidates = _candidates(size, iterations, steps)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    with torch.no_grad():
        for number in range(rounds + 1):
            for name, run in candidates.items():
                dist.barrier()
                began = time.perf_counter()
                run()
                if number:  # the first round traces
                    seconds[name].append(time.perf_counter() - began)
    if rank == 0:
        (Path(folder) / "seconds").write_text(json.dumps(seconds))
    dist.barrier()
    dist.destroy_process_group()


def _candidates(size: int, iterations: int, steps: int) -> dict[str, Callable[[], Any]]:
    numbers = [torch.tensor(0.0) for _ in range(size)]
    end, message = float(iterations), torch.zeros(24, dtype=torch.uint8)
    counted, steered, in_step = ring.counted(size), ring.steered(size), ring.in_step(size)
    others = count(1)

    def broadcasts() -> None:
        for _ in range(iterations):
            dist.broadcast(message, 0)

    def barriers() -> None:
        for _ in range(iterations):
            dist.barrier()

    def empty_calls() -> None:
        for _ in range(CALLS):
            counted(0, *numbers)

    return {
        EMPTY: empty_calls,
        "counted": lambda: counted(steps, *numbers),
        "predicate": lambda: steered(end, *numbers),
        "predicate, other ends": lambda: steered(end - next(others) / 2, *numbers),
        "bare broadcast": broadcasts,
        "in step": lambda: in_step(end, *numbers),
        "bare barrier": barriers,
    }


def _figures(size: int, seconds: dict[str, list[float]], iterations: int, steps: int) -> Figures:
    rows = []
    counts = {EMPTY: CALLS, "counted": steps}
    for name, times in seconds.items():
        rate = Spread.of([counts.get(name, iterations) / each for each in times])
        floor = seconds.get(FLOORS.get(name, "")) if size > 1 else None
        ratio = "" if floor is None else str(_ratio(times, floor))
        rows.append((name, str(rate), ratio))
    return Figures(
        f"{size} processes, {iterations} iterations a call, {steps} where they are counted",
        ("loop", "iterations/s", "time / floor"),
        tuple(rows),
        f"on {os.cpu_count()} cores; all but other ends follow the plan of the first call",
    )


def _ratio(times: Sequence[float], floor: Sequence[float]) -> Spread:
    return Spread.of([mine / least for mine, least in zip(times, floor, strict=True)])


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.set_defaults(rounds=5)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--iterations", type=int, default=200, help="fewer beyond the cores")
    parser.add_argument("--device", default="cpu", help="the name of the place in records")
    parser.add_argument("--counted", type=int, default=2000, help="iterations of counted loops")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("distributed_loop", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
