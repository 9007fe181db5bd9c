"""Three numerical methods that need another number of steps for each problem.

Newton's iteration until the residual is small, an ODE with a step size that adapts to its error,
and a Markov chain that runs until it has accepted enough moves. Each is written for one problem, in
plain Python; problems that are done leave the batch. Gradients flow through all steps.
"""

from __future__ import annotations

import argparse
import math

import torch

import penstock as ps


@ps.function
def cubic_root(a, b):
    """x with x**3 + a x = b, by Newton's method, and the number of steps."""
    x, steps = b, 0
    while (x**3 + a * x - b).abs() > 1e-6 * (1 + b.abs()):
        x = x - (x**3 + a * x - b) / (3 * x**2 + a)
        steps += 1
    return x, steps


@ps.function
def oscillate(stiffness, damping, end, tolerance):
    """A damped spring from rest at 1, until `end`: Heun's method with Euler's as its error."""

    def slope(y):
        return torch.stack([y[1], -stiffness * y[0] - damping * y[1]])

    y, time, step, steps = torch.tensor([1.0, 0.0]), torch.zeros(()), 0.1 + 0 * end, 0
    while time < end:
        step = torch.minimum(step, end - time)
        first = slope(y)
        euler = y + step * first
        heun = y + 0.5 * step * (first + slope(euler))
        error = (heun - euler).abs().max().detach()
        if error < tolerance:
            y, time = heun, time + step
        step = (step * (0.8 * (tolerance / (error + 1e-12)).sqrt()).clamp(0.2, 3.0)).detach()
        steps += 1
    return y[0], steps


@ps.function
def sample(mean, deviation, wanted):
    """The mean of `wanted` accepted moves of a Metropolis chain, and how many it proposed."""
    x, total, accepted, proposed = mean * 0, mean * 0, 0, 0
    while accepted < wanted:
        move = x + 2 * torch.randn(())
        ratio = ((x - mean) ** 2 - (move - mean) ** 2) / (2 * deviation**2)
        if torch.rand(()).log() < ratio:
            x, accepted = move, accepted + 1
            total = total + move
        proposed += 1
    return total / wanted, proposed


def show(name, steps):
    print(f"{name}: {min(steps)} to {max(steps)} steps, {len(steps)} problems")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=16, help="of each kind (default 16)")
    count = parser.parse_args().problems
    torch.manual_seed(0)

    a, b = torch.rand(count, requires_grad=True), 10 * torch.randn(count)
    roots, steps = cubic_root.map(a, b, out="stack")
    torch.testing.assert_close(roots**3 + a * roots, b, rtol=1e-4, atol=1e-4)
    (slopes,) = torch.autograd.grad(roots.sum(), a)
    torch.testing.assert_close(slopes, -roots / (3 * roots**2 + a), rtol=1e-2, atol=1e-3)
    show("Newton", steps.tolist())

    stiffness = torch.linspace(0.5, 20, count, requires_grad=True)
    columns = stiffness, 0.3 * torch.ones(count), torch.full((count,), 2.0)
    ends, steps = oscillate.map(*columns, out="stack", tolerance=torch.tensor(1e-2))
    turn = (stiffness - 0.15**2).sqrt()
    exact = math.exp(-0.3) * ((2 * turn).cos() + 0.15 / turn * (2 * turn).sin())
    torch.testing.assert_close(ends, exact, rtol=0, atol=0.05)
    (slopes,) = torch.autograd.grad(ends.sum(), stiffness)
    print(f"ODE: sensitivity to stiffness from {slopes.min():.3f} to {slopes.max():.3f}")
    show("ODE", steps.tolist())

    means, deviations = torch.linspace(-1, 1, count), torch.linspace(0.3, 3, count)
    with torch.no_grad():
        _, proposed = sample.map(means, deviations, [50] * count, out="stack")
    show("Metropolis", proposed.tolist())


if __name__ == "__main__":
    main()
