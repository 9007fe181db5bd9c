"""Training on long sequences inside a memory budget: what does not fit is swapped.

The adding problem: two numbers of a long sequence are marked, and an LSTM says their sum at its
end. Backward needs the values of every step. With "keep" all of them stay in memory; with "swap"
and a budget they leave, to a file from a CPU and to pinned host memory from a GPU, and come back in
time. Losses are the same to the bit. `--full` takes 4,000 steps of 256 units, with 777 MiB to keep.
How long it takes is measured by `penstock bench swap_lstm`.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import penstock as ps

MIB = 2**20


class Adder(nn.Module):
    """One number for a sequence of pairs (a number, whether it is marked)."""

    def __init__(self, hidden):
        super().__init__()
        self.hidden = hidden
        self.cell = nn.LSTMCell(2, hidden)
        self.sum = nn.Linear(hidden, 1)

    @ps.function
    def forward(self, sequence):
        zeros = self.sum.weight.new_zeros(self.hidden)
        h, _ = ps.foldl(lambda state, pair: self.cell(pair, state), sequence, (zeros, zeros))
        return self.sum(h)[0]


def problems(count, length, device):
    """Sequences of lengths from three quarters of `length` on, and their sums."""
    sequences, sums = [], []
    for size in torch.randint(3 * length // 4, length + 1, (count,)).tolist():
        numbers, marks = torch.rand(size), torch.zeros(size)
        marks[torch.randperm(size)[:2]] = 1.0
        sequences.append(torch.stack([numbers, marks], 1).to(device))
        sums.append(numbers[marks > 0].sum())
    return sequences, torch.stack(sums).to(device)


def train(options, policy, budget=None):
    """The last loss, and the most bytes that were held for backward when a forward was over."""
    torch.manual_seed(0)
    model = Adder(options.hidden).to(options.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    held = 0
    for _ in range(options.steps):
        sequences, sums = problems(options.batch, options.length, options.device)
        with ps.profile() as run, ps.memory(policy, budget=budget):
            outputs = model.forward.map(sequences, out="stack")
        loss = nn.functional.mse_loss(outputs, sums)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        held = max(held, *(call.saved_bytes for call in run.calls))
    return loss.item(), held


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="long sequences, a large model")
    parser.add_argument("--steps", type=int, default=2, help="of training (default 2)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    options = parser.parse_args()
    options.length, options.hidden, options.batch = (4_000, 256, 32) if options.full else (60, 8, 4)

    loss, held = train(options, "keep")
    print(f"keep: {held / MIB:.2f} MiB held for backward, loss {loss:.4f}")
    budget = held // 8
    swapped, held = train(options, "swap", budget)
    print(f"swap: {held / MIB:.2f} MiB of a budget of {budget / MIB:.2f}, loss {swapped:.4f}")
    assert swapped == loss, "swapping must not change the result"


if __name__ == "__main__":
    main()
