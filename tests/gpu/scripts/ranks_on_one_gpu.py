"""One rank of several whose devices are a GPU and a CPU: it checks itself against plain Python."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import penstock as ps

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LAST = SIZE - 1
WIDTH = 8


def make(first, second):
    @ps.function
    def program(x, n):
        """A loop over the GPU of two ranks and the CPU of the last."""

        def body(i, a, b):
            with ps.device("rank:0/cuda:0"):
                a = torch.tanh(a @ first)
            with ps.device(f"rank:{LAST}/cpu:0"):
                c = torch.sin(b) + a
            with ps.device(f"rank:{LAST}/cuda:0"):
                b = torch.tanh(c @ second + a)
            return i + 1, a, b

        with ps.device("rank:0/cuda:0"):
            start = torch.sin(x)
        return ps.while_loop(lambda i, a, b: i < n, body, (0, start, start))[2]

    @ps.function
    def converge(x):
        """A loop whose predicate is computed on the GPU of the last rank."""

        def body(a):
            with ps.device("rank:0/cuda:0"):
                return (a * 0.5,)

        def go_on(a):
            with ps.device(f"rank:{LAST}/cuda:0"):
                return (a * 2).sum() > 0.1

        with ps.device("rank:0/cuda:0"):
            start = x * 1.0
        return ps.while_loop(go_on, body, (start,))[0]

    return program, converge


def main():
    dist.init_process_group(
        sys.argv[1],
        init_method=os.environ["RENDEZVOUS"],
        rank=RANK,
        world_size=SIZE,
        timeout=timedelta(seconds=60),
    )
    torch.manual_seed(0)
    weights = [
        (torch.randn(WIDTH, WIDTH, dtype=torch.float64, device="cuda") / 2).requires_grad_()
        for _ in range(2)
    ]
    program, converge = make(*weights)
    xs = torch.randn(4, WIDTH, dtype=torch.float64, requires_grad=True)
    trips = [3, 0, 5, 1]
    found = torch.stack(program.map(xs, trips))
    with ps.set_eager(True):
        expected = torch.stack([program(x, n) for x, n in zip(xs, trips, strict=True)])
    torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=1e-9, atol=1e-11)
    scale = torch.linspace(-1, 1, WIDTH, dtype=torch.float64)
    leaves = [xs, weights[0 if RANK == 0 else 1]]
    ours = torch.autograd.grad((found.cpu() * scale).sum(), leaves)
    plain = torch.autograd.grad((expected.cpu() * scale).sum(), leaves)
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    with torch.no_grad():
        found = torch.stack(converge.map(xs.detach().abs())).cpu()
        with ps.set_eager(True):
            expected = torch.stack([converge(x) for x in xs.detach().abs()]).cpu()
    torch.testing.assert_close(found, expected)
    dist.destroy_process_group()
    print("agreed", flush=True)


if __name__ == "__main__":
    main()
