"""A recurrent network whose layers are in two processes, trained with checkpoints and restarts.

    torchrun --nproc-per-node 2 --max-restarts 3 examples/two_process_pipeline.py

Each sequence goes through a loop of its own length; the first layer of every step runs on rank 0,
the second on rank 1. Each process steps the parameters that it uses and saves them. If one fails,
the other gets an error, torchrun starts both again, and they go on from the last checkpoint that
both have. `--fail-at 5` shows it: rank 1 kills itself in step 5.
"""

from __future__ import annotations

import argparse
import os
import signal
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import penstock as ps


class Pipeline(nn.Module):
    """Two recurrent layers, each on a rank of its own."""

    def __init__(self, size=16):
        super().__init__()
        self.lower = nn.GRUCell(4, size)
        self.upper = nn.GRUCell(size, size)
        self.score = nn.Linear(size, 1)
        self.size = size

    @ps.function
    def forward(self, sequence):
        def body(k, low, high):
            with ps.device("rank:0"):
                low = self.lower(sequence[k], low)
            with ps.device("rank:1"):
                high = self.upper(low, high)
            return k + 1, low, high

        start = torch.zeros(self.size)
        count = sequence.shape[0]
        _, _, high = ps.while_loop(lambda k, *_: k < count, body, (0, start, start))
        with ps.device("rank:1"):
            return self.score(high).squeeze(-1)


def batch(step, count=16):
    """Sequences of different lengths; the target is the mean of their first entries."""
    generator = torch.Generator().manual_seed(step)
    lengths = torch.randint(2, 9, (count,), generator=generator).tolist()
    sequences = [torch.randn(length, 4, generator=generator) for length in lengths]
    return sequences, torch.stack([sequence[:, 0].mean() for sequence in sequences])


class Checkpoints:
    """What each rank saves of its own, and the last step that all ranks have saved."""

    def __init__(self, folder, rank):
        self.folder, self.rank = Path(folder), rank
        self.folder.mkdir(parents=True, exist_ok=True)

    def save(self, step, state):
        """Save under another name first: a process may be killed while it writes."""
        unfinished = self.folder / f"rank{self.rank}.unfinished"
        torch.save(state, unfinished)
        unfinished.rename(self._path(step))
        dist.barrier()  # now all have this one, and older ones can go
        for path in self.folder.glob(f"rank{self.rank}_step*.pt"):
            if path != self._path(step):
                path.unlink()

    def load(self):
        """The last step of which every rank has a checkpoint, and this rank's part of it."""
        mine = self.folder.glob(f"rank{self.rank}_step*.pt")
        steps = [int(path.stem.rpartition("step")[2]) for path in mine]
        last = torch.tensor(max(steps, default=0))
        dist.all_reduce(last, dist.ReduceOp.MIN)
        step = int(last)
        return (step, torch.load(self._path(step))) if step else (0, None)

    def _path(self, step):
        return self.folder / f"rank{self.rank}_step{step}.pt"


def train(options):
    """Train to the end, from the last checkpoint on."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Pipeline()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    checkpoints = Checkpoints(options.folder, rank)
    begin, state = checkpoints.load()
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        print(f"rank {rank}: goes on after step {begin}", flush=True)
    for step in range(begin + 1, options.steps + 1):
        sequences, targets = batch(step)
        optimizer.zero_grad()
        outputs = model.forward.map(sequences, out="stack")
        loss = (outputs - targets).square().mean()
        loss.backward()
        optimizer.step()
        print(f"rank {rank}: step {step} loss {loss.item():.6f}", flush=True)
        if step % 2 == 0:
            both = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            checkpoints.save(step, both)
        if step == options.fail_at and rank == 1 and attempt() == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def attempt():
    """How often torchrun has started this job again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--folder", default="checkpoints")
    parser.add_argument("--fail-at", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for a rank")
    options = parser.parse_args()
    ps.join_processes("gloo", timeout=timedelta(seconds=options.timeout))
    train(options)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
