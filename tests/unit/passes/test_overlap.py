"""Whether iterations of loops can overlap, as `run.explain()` tells it."""

from __future__ import annotations

import pytest
import torch

import penstock as ps

DEVICES = ("cpu:0", "cpu:1")


def stages(devices=DEVICES, *, most=4, is_chain=False, is_read=False):
    """A loop of two stages; in a chain the first needs what the second has made before."""

    @ps.function
    def loop(x, n):
        def goes_on(i, a, b):
            return (b.norm() < 100) & (i < n) if is_read else i < n

        def body(i, a, b):
            with ps.device(devices[0]):
                a = torch.sin(b if is_chain else a)
            with ps.device(devices[1]):
                b = torch.cos(a + b)
            return i + 1, a, b

        return ps.while_loop(goes_on, body, (0, x, x), parallel_iterations=most)[2]

    return loop


def said_of(loop) -> str:
    with torch.no_grad(), ps.profile() as run:
        loop(torch.ones(2), 3)
    (found,) = [each for each in run.explain().split("\n\n") if "overlap" in each]
    where, _, said = found.partition("): ")
    assert where.startswith("loop.loop (")
    return said


SAID = {
    "bounded": (stages(), "iterations overlap on cpu:0 and cpu:1, up to 4 in flight."),
    "unbounded": (
        stages(most=None),
        "iterations overlap on cpu:0 and cpu:1, any number in flight.",
    ),
    "one at a time": (
        stages(most=1),
        "iterations do not overlap: parallel_iterations=1 asks for one at a time.",
    ),
    "one device": (
        stages(("cpu:1", "cpu:1")),
        "iterations do not overlap: all its blocks run on one device, cpu:1, in order.",
    ),
    "a chain": (
        stages(is_chain=True),
        "iterations do not overlap: each device needs what the others have computed in the "
        "iteration before.",
    ),
    "a read": (
        stages(is_read=True),
        "iterations do not overlap: a computed value is read back in each iteration, and decides "
        "how it goes on.",
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_an_explanation_says_whether_iterations_overlap_and_why_not(name):
    loop, expected = SAID[name]
    assert said_of(loop) == expected


def test_nothing_is_said_of_loops_that_nobody_has_placed_or_bounded():
    @ps.function
    def loop(x, n):
        return ps.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, torch.sin(x)), (0, x))[1]

    with torch.no_grad(), ps.profile() as run:
        loop(torch.ones(2), 3)
    assert "overlap" not in run.explain()


def test_a_bound_on_a_program_that_nobody_has_placed_does_nothing_and_says_so():
    @ps.function
    def loop(x, n):
        return ps.while_loop(
            lambda i, x: i < n,
            lambda i, x: (i + 1, torch.sin(x @ torch.eye(2))),
            (0, x),
            parallel_iterations=8,
        )[1]

    assert said_of(loop).endswith("all its blocks run on one device, cpu:0, in order.")
