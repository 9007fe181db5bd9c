"""Claim: a loop over scalars runs as native code, and rows that are done cost nothing.

A trivial loop of one instance; Collatz, each instance with its own trip count; relaxation until
convergence with the gradients of three columns. Baselines: torch with all rows masked and with
finished rows left out; on the CPU also one row after the other, and Python's own numbers.
`--compiled` adds a compiled masked step. The first call of penstock compiles, and is not timed; nor
are those of peers, which run where they are installed (benchmarks/peers).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import penstock as ps
from benchmarks.baselines.scalar_loops import Condition, Step, compacting, compiled_masked, masked
from benchmarks.figures import Figures
from benchmarks.harness import Candidate, Comparison, compare
from benchmarks.peers.loop_problem import NEAR, collatz, relaxation
from benchmarks.peers.process import add_peer_option, peers_for
from benchmarks.script import run_script


def trivial(x: Any, i: Any, n: Any) -> Any:
    """Multiply and add, n times."""
    while i < n:
        x = x * 0.5 + 1.0
        i = i + 1
    return x


def _collatz_step(n: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1


def _relax_step(x: Tensor, target: Tensor, rate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x + rate * (target - x), target, rate


def compare_trivial(options: argparse.Namespace) -> Comparison:
    """One instance, many iterations."""
    n = options.iterations
    program = ps.function(trivial)
    x, start = torch.tensor(1.0, device=options.device), torch.tensor(0)
    candidates: dict[str, Candidate] = {
        "penstock": lambda: program(x, 0, n),
        "plain Python floats": lambda: torch.tensor(trivial(1.0, 0, n), device=options.device),
        "torch eager": lambda: trivial(x, start, n),
    }
    return compare(
        "trivial loop, one instance",
        candidates,
        reference="plain Python floats",
        work=n,
        unit="iterations",
        rounds=options.rounds,
        notes={"iterations": str(n)},
    )


def compare_collatz(options: argparse.Namespace) -> Comparison:
    """Instances that need between none and some hundred steps."""
    n = torch.arange(1, options.instances + 1, device=options.device)
    program = ps.function(collatz)
    columns = [n, torch.zeros_like(n)]
    candidates: dict[str, Candidate] = {"penstock": lambda: program.map(n, out="stack")}
    if n.device.type == "cpu":
        numbers = n.tolist()
        candidates["plain Python ints"] = lambda: torch.tensor([collatz(k) for k in numbers])
    for name, run in _by_hand(lambda n, count: n != 1, _collatz_step, options).items():
        candidates[name] = partial(lambda run: run(columns)[1].cpu(), run)  # where a count is
    problem = {"program": "collatz", "n": n.cpu().numpy()}
    return _compare_rows(f"Collatz, {len(n)} instances", candidates, problem, options)


def compare_relaxation(options: argparse.Namespace) -> Comparison:
    """Up to some 240 steps an instance, with gradients."""
    generator = torch.Generator().manual_seed(0)
    x, target, rate = torch.rand(3, options.instances, generator=generator)
    columns = [column.to(options.device) for column in (x, target, 0.04 + 0.5 * rate)]
    program = ps.function(relaxation)
    runs: dict[str, Callable[[Sequence[Tensor]], Tensor]] = {
        "penstock": lambda given: program.map(*given, out="stack"),
    }
    if options.device == "cpu":
        runs["torch, per sample"] = lambda given: torch.stack(
            [relaxation(*row) for row in zip(*given)]
        )
    for name, run in _by_hand(_is_far, _relax_step, options).items():
        runs[name] = partial(lambda run, given: run(given)[0], run)
    candidates = {name: partial(_with_gradients, run, columns) for name, run in runs.items()}
    named = {name: column.cpu().numpy() for name, column in zip(("x", "target", "rate"), columns)}
    bound = _most_steps(columns)
    problem = {"program": "relaxation", "bound": bound, **named}
    title = f"relaxation with gradients, {options.instances} instances"
    return _compare_rows(title, candidates, problem, options)


def _per_sample(columns: Sequence[Tensor]) -> Tensor:
    return torch.stack([relaxation(*row) for row in zip(*columns)])


def _is_far(x: Tensor, target: Tensor, rate: Tensor) -> Tensor:
    return (target - x).abs() > NEAR


def _most_steps(columns: Sequence[Tensor]) -> int:
    """How many steps are enough for all instances."""
    x, target, rate = columns
    count = 0
    while _is_far(x, target, rate).any():
        x, count = x + rate * (target - x), count + 1
    return count + 1


def _by_hand(
    condition: Condition, step: Step, options: argparse.Namespace
) -> dict[str, Callable[[Sequence[Tensor]], list[Tensor]]]:
    """The baselines that take all rows together."""
    found: dict[str, Callable[[Sequence[Tensor]], list[Tensor]]] = {
        "torch, masked": partial(masked, condition, step),
        "torch, compacting": partial(compacting, condition, step),
    }
    if options.compiled:
        found["torch, compiled masked step"] = compiled_masked(condition, step)
    return found


def _with_gradients(
    run: Callable[[Sequence[Tensor]], Tensor], columns: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    given = [column.clone().requires_grad_() for column in columns]
    result = run(given)
    return result, *torch.autograd.grad(result.sum(), given)


def _compare_rows(
    title: str,
    candidates: Mapping[str, Candidate],
    problem: Mapping[str, Any],
    options: argparse.Namespace,
) -> Comparison:
    wanted = options.peers and options.device == "cpu"
    with peers_for("loops", problem, wanted=wanted) as (peers, missing):
        return compare(
            title,
            {**candidates, **peers},
            reference="torch, masked",
            work=options.instances,
            unit="instances",
            rounds=options.rounds,
            tolerance=1e-3,
            missing=missing,
        )


LOOPS: dict[str, Callable[[argparse.Namespace], Comparison]] = {
    "trivial": compare_trivial,
    "collatz": compare_collatz,
    "relaxation": compare_relaxation,
}


def measure(options: argparse.Namespace) -> Iterator[Comparison | Figures]:
    """One table for each loop."""
    for name in options.loops:
        yield LOOPS[name](options)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.add_argument("--loops", nargs="+", choices=list(LOOPS), default=list(LOOPS))
    parser.add_argument("--instances", type=int, default=1024)
    parser.add_argument("--iterations", type=int, default=200_000)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--compiled", action="store_true", help="also a compiled masked step")
    add_peer_option(parser)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("native_loops", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
