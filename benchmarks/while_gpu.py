"""Claim: a data-dependent loop on the device makes 150,000 iterations a second: no read in each.

A loop with a trivial body on a CUDA device, under no_grad, that goes on while a value computed on
the device is below a limit. Eagerly the host reads that value in every iteration. The scalar loop
has one operation in its body, the vector loop four on 16 elements; both run as one Triton program.
The layer loop has a product with a matrix of 64 x 64: it runs as a CUDA graph with a WHILE node.
Collatz and relaxation with gradients are those of `native_loops`, many rows of which each makes its
own number of iterations. Does nothing where there is no CUDA device.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import penstock as ps
from benchmarks.harness import Comparison, compare
from benchmarks.native_loops import compare_collatz, compare_relaxation
from benchmarks.script import run_script

#: A loop on a state, up to a limit.
Code = Callable[[Tensor, Tensor], Any]

REFERENCE = "eager, a read in each iteration"


def scalar_loop(x: Tensor, limit: Tensor) -> Any:
    """One operation in the body."""
    while x < limit:
        x = x + 1
    return x


def vector_loop(x: Tensor, limit: Tensor) -> Any:
    """Four operations in the body, and a condition on all elements."""
    while x.amax() < limit:
        x = torch.floor(torch.relu(x) + torch.sign(x) + 0.5)
    return x


def make_layer_loop(device: str) -> Code:
    """Three operations in the body, one of them a product with a matrix."""
    weight = torch.eye(64, device=device)

    def layer_loop(x: Tensor, limit: Tensor) -> Any:
        while x.amax() < limit:
            x = torch.relu(x @ weight) + 1
        return x

    return layer_loop


class Loop(NamedTuple):
    """Makes a loop in plain Python for a device; and the shape of its state."""

    make: Callable[[str], Code]
    shape: tuple[int, ...]


LOOPS = {
    "scalar": Loop(lambda device: scalar_loop, ()),
    "vector": Loop(lambda device: vector_loop, (16,)),
    "layer": Loop(make_layer_loop, (64,)),
}

#: Loops of many rows.
ROWS = {"collatz": compare_collatz, "relaxation": compare_relaxation}


def measure_loop(name: str, options: argparse.Namespace) -> Comparison:
    """One loop, from one to the number of iterations."""
    make, shape = LOOPS[name]
    code = make(options.device)
    x = torch.ones(shape, device=options.device)
    limit = torch.tensor(1.0 + options.iterations, device=options.device)
    program = ps.function(code)
    return compare(
        f"{name} loop, {options.iterations:,} iterations",
        {"penstock": lambda: program(x, limit), REFERENCE: lambda: code(x, limit)},
        reference=REFERENCE,
        work=options.iterations,
        unit="iterations",
        rounds=options.rounds,
    )


def measure(options: argparse.Namespace) -> Iterator[Comparison]:
    """All loops."""
    for name in options.loops:
        if name in ROWS:
            yield ROWS[name](options)
        else:
            with torch.no_grad():
                yield measure_loop(name, options)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The sizes."""
    parser.set_defaults(rounds=5, peers=False)  # those of `native_loops` run on a CPU
    every = [*LOOPS, *ROWS]
    parser.add_argument("--loops", nargs="+", choices=every, default=every)
    parser.add_argument("--instances", type=int, default=1024)
    parser.add_argument("--compiled", action="store_true", help="also a compiled masked step")
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a script."""
    run_script("while_gpu", __doc__, add_options, measure, arguments)


if __name__ == "__main__":
    main()
