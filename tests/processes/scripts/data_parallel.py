"""One rank of a data-parallel run; it checks the weights against a run of its own."""

import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import penstock as ps

torch.set_default_dtype(torch.float64)


class Trees(nn.Module):
    """Takes a batch and maps inside; one of its layers is used by some instances only."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(3, 3)
        self.rare = nn.Linear(3, 3)
        self.never = nn.Linear(3, 3)

    @ps.function
    def score(self, x, n):
        def body(k, h):
            return k + 1, torch.tanh(self.cell(h))

        h = ps.while_loop(lambda k, h: k < n, body, (0, x))[1]
        return ps.cond(n > 2, lambda: self.rare(h), lambda: h).sum()

    def forward(self, x, counts):
        return torch.stack(self.score.map(x, counts))


def batch(rank, step):
    generator = torch.Generator().manual_seed(10 * step + rank)
    counts = [1, 2, 1] if rank == 0 else [3, 0, 4]
    return torch.randn(3, 3, generator=generator), counts


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo", init_method=os.environ["RENDEZVOUS"], rank=rank, world_size=size
    )
    torch.manual_seed(0)
    model = Trees()
    alone = copy.deepcopy(model)
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, alone)]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        parallel(*batch(rank, step)).pow(2).mean().backward()
        losses = [alone(*batch(other, step)).pow(2).mean() for other in range(size)]
        (sum(losses) / size).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert model.never.weight.grad is None
    torch.testing.assert_close(model.state_dict(), alone.state_dict(), rtol=1e-9, atol=1e-9)
    print("agreed", flush=True)
    del parallel  # its threads end before the group that they talk through
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
