"""When a program changes to windows, and when it stays with single iterations."""

import pytest
import torch

import penstock as ps
from penstock.plan.planners import planning
from penstock.run import windows
from penstock.run.windows import loop_windows
from tests.fused import fused_without_compiler

ROWS = torch.randn(3, 20, 4)


def make_program(**options):
    @ps.function(**options)
    def last(sequence):
        return ps.foldl(lambda state, x: torch.tanh(state + x), sequence, torch.zeros(4))

    return last


def launches_of(program, *arguments, **options):
    with ps.profile() as run:
        program.map(*(arguments or (ROWS,)), **options)
    return sum(launch.block.startswith("last") for launch in run.launches)


def test_twenty_iterations_are_two_windows_and_four_single_ones():
    program = make_program()
    assert launches_of(program) == 20
    with loop_windows(True):
        assert launches_of(program) == 2 + 4
    assert launches_of(program) == 20


def test_what_ran_and_what_would_run_is_told_of_windows_and_single_iterations():
    program = make_program()
    with loop_windows(True):
        with ps.profile() as run:
            program.map(ROWS)
        told = run.explain()  # what took longer comes first
        assert "last.loop.by8, 8 iterations at a time, ran serially, 2 launches" in told
        assert "The loop last.loop ran serially, 4 launches" in told
        assert len(program.schedule(ROWS).launches) == 6
        assert "enter last.loop.by8(" in str(program.graph(ROWS[0]))
    assert len(program.schedule(ROWS).launches) == 20
    assert "by8" not in str(program.graph(ROWS[0]))


def test_a_program_changes_to_windows_once_that_pays(monkeypatch):
    program = make_program()
    monkeypatch.setattr(windows, "SAVING", windows.PRICE / 300)
    counts = [launches_of(program) for _ in range(5)]
    assert counts[0] == 20
    assert counts[-1] == 6
    assert counts == sorted(counts, reverse=True)


def test_compiled_launches_come_with_windows():
    with fused_without_compiler():
        assert launches_of(make_program()) == 6


@pytest.mark.parametrize("policy", ["swap", "recompute", "auto"])
def test_a_tight_bound_for_memory_goes_by_single_iterations(policy):
    with loop_windows(True):
        assert launches_of(make_program(memory=policy)) == 20
        with ps.memory(policy, budget="1KiB"):
            assert launches_of(make_program()) == 20
        with ps.memory(policy, budget="1MiB"):
            assert launches_of(make_program()) == 6
        with ps.memory("keep"):
            assert launches_of(make_program()) == 6


def test_a_plan_that_was_made_elsewhere_is_run():
    program = make_program()
    batch = program.collate([(row,) for row in ROWS])
    with loop_windows(True):
        assert launches_of(program, batch) == 20


@pytest.mark.parametrize("mode", ["never", "always"])
def test_sequences_of_different_lengths_agree_with_a_loop(mode):
    rows = [torch.randn(n, 4, dtype=torch.float64) for n in (0, 1, 7, 8, 9, 16, 23)]
    weight = torch.randn(4, dtype=torch.float64, requires_grad=True)

    @ps.function
    def last(sequence):
        state = torch.zeros(4, dtype=torch.float64)
        for x in sequence:
            state = torch.tanh(weight * state + x)
        return state

    def by_hand(sequence):
        state = torch.zeros(4, dtype=torch.float64)
        for x in sequence:
            state = torch.tanh(weight * state + x)
        return state

    with loop_windows(True), planning(mode):
        actual = last.map(rows, out="stack")
    expected = torch.stack([by_hand(row) for row in rows])
    torch.testing.assert_close(actual, expected)
    cotangent = torch.randn_like(expected)
    found, known = (torch.autograd.grad(y, weight, cotangent)[0] for y in (actual, expected))
    torch.testing.assert_close(found, known)
