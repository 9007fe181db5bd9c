"""Claim: an agent that learns inside its program is faster than one that is driven from outside.

Agents in a small world act, store, sample, update and copy their table of values, the same steps
from the same numbers of chance. In the graph: all steps of an agent are one program, mapped over
the agents. Driven: Python calls one step after the other, of a program mapped over the agents, or
of plain PyTorch that was batched by hand. The literature tells of 21% for a larger agent.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from benchmarks.harness import Comparison, compare
from benchmarks.programs.agent import CHANCES, State, life, one_step, start, step
from benchmarks.script import run_script

REFERENCE = "penstock, driven from Python"


def driven(chances: Tensor) -> Tensor:
    """Each step is a call of a program."""
    state = start(len(chances))
    times = torch.arange(chances.shape[1])
    for t in times:
        now = t.expand(len(chances))
        state = one_step.map(_rows(state), now, chances[:, int(t)], out="stack")
    return state.values


def _rows(state: State) -> list[State]:
    return [State(*row) for row in zip(*state, strict=True)]


def driven_by_hand(chances: Tensor) -> Tensor:
    """Each step is plain PyTorch on rows."""
    state = start(len(chances))
    for t, chance in enumerate(chances.unbind(1)):
        state = step(state, torch.tensor(t), chance)
    return state.values


def measure_agents(agents: int, options: argparse.Namespace) -> Comparison:
    """One number of agents."""
    torch.manual_seed(0)
    chances = torch.rand(agents, options.steps, CHANCES)
    candidates: dict[str, Callable[[], Tensor]] = {
        "penstock, in the graph": lambda: life.map(chances, out="stack"),
        REFERENCE: lambda: driven(chances),
        "eager, batched by hand, driven": lambda: driven_by_hand(chances),
    }
    return compare(
        f"{agents} agents, {options.steps} steps",
        candidates,
        reference=REFERENCE,
        work=agents * options.steps,
        unit="steps",
        rounds=options.rounds,
        notes={"structure": "none; plans are known"},
    )


def measure(options: argparse.Namespace) -> Iterator[Comparison]:
    """All numbers of agents."""
    with torch.no_grad():
        for agents in options.agents:
            yield measure_agents(agents, options)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.add_argument("--agents", type=int, nargs="+", default=[1, 64, 1024])
    parser.add_argument("--steps", type=int, default=200)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("in_graph_training", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
