"""Easy examples leave a deep network early.

Points belong to one of three rings. All heads are trained; at run time an example stops at the
first head that is sure, so easy points take few layers and points between two rings take several.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import nn
from torch.nn import functional as F

import penstock as ps


def points(count, generator):
    """Points in the plane, and the ring that each lies in."""
    radius = 3 * torch.rand(count, generator=generator)
    angle = 2 * math.pi * torch.rand(count, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), radius.long()


def make_network(size, depth):
    layers = [
        nn.Sequential(nn.Linear(2 if level == 0 else size, size), nn.Tanh())
        for level in range(depth)
    ]
    return ps.nn.EarlyExit(layers, [nn.Linear(size, 3) for _ in layers], threshold=0.9)


def train(model, steps, generator):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        xs, rings = points(128, generator)
        scores = model.exits.map(xs, out="stack")  # [examples, heads, classes]
        loss = F.cross_entropy(scores.transpose(1, 2), rings[:, None].expand(scores.shape[:2]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="of training (default 200)")
    options = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = make_network(size=32, depth=4)
    train(model, options.steps, generator)

    xs, rings = points(500, generator)
    with torch.no_grad(), ps.profile() as run:
        scores, depths = ps.map(model, xs, out="stack")
    accuracy = (scores.argmax(1) == rings).double().mean()
    with torch.no_grad():
        full = (model.exits.map(xs, out="stack")[:, -1].argmax(1) == rings).double().mean()
    print(f"all layers: {full:.1%} right")
    print(f"early exit: {accuracy:.1%} right after {depths.double().mean():.2f} layers of 4")
    for depth, count in enumerate(depths.bincount(minlength=5).tolist()[1:], 1):
        print(f"  {count:3d} points left after layer {depth}")
    print(f"{len(run.launches)} launches for {len(xs)} points")


if __name__ == "__main__":
    main()
