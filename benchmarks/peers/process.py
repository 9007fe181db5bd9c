"""Peers as candidates of a comparison: processes that compute the same and time themselves.

A process lives as long as its comparison, and is idle while others are timed. What it must compute
comes in a folder of arrays; its results come back the same way and are checked like all others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers.environments import ROOT, installed, python_of


class PeerFailed(RuntimeError):
    """A peer's process ended before it answered."""


class Peer:
    """A candidate in another process."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, log: IO[str]) -> None:
        self._process, self._folder, self._log = process, folder, log
        self.version: str = self._answer()["ready"]

    def __call__(self) -> Any:
        """What it computes: a tensor, or a tuple of them."""
        self._ask("result")
        count = self._answer()["results"]
        with np.load(self._folder / "result.npz") as found:
            tensors = tuple(_tensor(found[str(number)]) for number in range(count))
        return tensors if count > 1 else tensors[0]

    def seconds_per_call(self, repeats: int) -> float:
        """The mean over so many calls."""
        self._ask(f"time {repeats}")
        return float(self._answer()["seconds"])

    def end(self) -> None:
        """Close its input, which ends it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _ask(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            said = self._log.read().strip().splitlines() or ["it said nothing"]
            raise PeerFailed(said[-1])
        answer: dict[str, Any] = json.loads(line)
        return answer


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.array(array))


def parameters_in(model: nn.Module) -> dict[str, Any]:
    """What a problem says of its model: see `parameters`, which reads it."""
    named = dict(model.named_parameters())
    return {
        "parameters": list(named),
        "trained": [name for name, value in named.items() if value.requires_grad],
        **{name: value.detach().numpy() for name, value in named.items()},
    }


@contextmanager
def peers_for(
    work: str, problem: Mapping[str, Any], *, wanted: bool = True
) -> Iterator[tuple[dict[str, Peer], dict[str, str]]]:
    """All installed peers at some work, by name; and those that could not be started, with why.

    `work` is the last part of the workers' names: `trees` is run by `jax_trees` and others.
    """
    found: dict[str, Peer] = {}
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        for name in installed() if wanted else []:
            if not (Path(__file__).parent / f"{name}_{work}.py").exists():
                continue
            try:
                found[name] = stack.enter_context(_started(name, work, problem))
            except PeerFailed as failure:
                missing[name] = str(failure)
        yield {f"{peer.version} (peer)": peer for peer in found.values()}, missing


def add_peer_option(parser: argparse.ArgumentParser) -> None:
    """For scripts that run on a CPU, as the peers do."""
    parser.add_argument(
        "--peers",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also other systems, where benchmarks.peers.install has installed them",
    )


def _command(name: str, work: str) -> list[str]:
    return [str(python_of(name)), "-m", f"benchmarks.peers.{name}_{work}"]


@contextmanager
def _started(name: str, work: str, problem: Mapping[str, Any]) -> Iterator[Peer]:
    with TemporaryDirectory() as place:
        folder = Path(place)
        np.savez(folder / "problem.npz", **problem)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
        threads = str(torch.get_num_threads())
        with (folder / "log").open("w+", encoding="utf-8") as log:
            process = subprocess.Popen(
                [*_command(name, work), place, threads],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
            with process:
                peer = Peer(process, folder, log)
                try:
                    yield peer
                finally:
                    peer.end()
