"""Random operations on a device: the numbers of the CPU, in a graph and in plain Python."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import penstock as ps

pytestmark = pytest.mark.gpu


@ps.function
def program(xs):
    def step(total, x):
        noise = torch.rand(3, device=x.device) + torch.rand_like(x)
        return total + F.dropout(x, 0.5) * noise, torch.randint(9, (2,), device=x.device)

    return ps.scan(step, torch.zeros_like(xs[0]), xs)


def test_a_device_draws_what_the_cpu_draws():
    columns = [torch.randn(length, 3, dtype=torch.float64) for length in (4, 1, 3)]

    def run(device):
        torch.manual_seed(6)
        return program.map([xs.to(device) for xs in columns])

    expected = run("cpu")
    found = [run("cuda")]
    with ps.set_eager(True):
        found.append(run("cuda"))
    for rows in found:
        for row, wanted in zip(rows, expected, strict=True):
            for one, other in zip(row, wanted, strict=True):
                assert one.is_cuda
                torch.testing.assert_close(one.cpu(), other)
