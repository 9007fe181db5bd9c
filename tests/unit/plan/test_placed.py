"""Plans for several devices: every launch finds what it reads on its own device, and no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import penstock as ps
from penstock.plan.exchanges import GIVEN, Exchange
from penstock.plan.placed import PlacedPlanner
from penstock.plan.schedule import (
    Await,
    Chunk,
    Copy,
    Instruction,
    Launch,
    Mark,
    Pad,
    Picks,
    Read,
    Span,
    Store,
    Unpad,
)
from penstock.run import executable
from tests.placed_programs import PLACED, loop_across_devices
from tests.placing import placed_in_turn
from tests.semantics.programs import PROGRAMS

#: Programs whose control is known beforehand: their plans are made without running anything.
PLANNED = [name for name in PLACED if name != "loop_until_a_value_computed_elsewhere"]
INPUTS = -1

#: Nothing of these runs on the second device.
SILENT = ("loop_on_an_untaken_branch", "remote_loop_without_iterations")

#: Programs of the table with trees, arrays, padded sequences and slices.
IN_TURN = (
    "binary_tree_lstm",
    "lstm_by_tensor_array",
    "stacked_sequences",
    "map_over_sequences",
    "recursion_in_loop",
    "token_losses",
    "attention_decoder",
    "prefixes_in_a_loop",
)


class Planned:
    """A plan with what its planner says about it."""

    def __init__(self, function: Any, columns: list[list[Any]]) -> None:
        planners: list[PlacedPlanner] = []
        make = executable.new_placed_planner

        def keep(*args: Any) -> PlacedPlanner:
            planners.append(make(*args))
            return planners[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(executable, "new_placed_planner", keep)
            self.schedule = function.schedule(*columns)
        (self.planner,) = planners
        counted = [item for item in self.schedule.instructions if not isinstance(item, Chunk)]
        self.instructions: list[Instruction] = counted

    def device(self, slots: Span | Picks) -> int:
        return slots.arena % self.planner.devices


def slots_of(source: Span | Picks) -> list[tuple[int, int]]:
    if isinstance(source, Span):
        return [(source.arena, slot) for slot in range(source.start, source.start + source.count)]
    return [(source.arena, int(slot)) for slot in source.slots]


def reads_and_writes(item: Instruction) -> tuple[list[Any], list[Any]]:
    match item:
        case Launch():
            reads = [operand for operand in item.operands if isinstance(operand, Span | Picks)]
            return reads, list(item.targets)
        case Copy() | Pad() | Unpad():
            return [item.source], [item.target]
        case Store():
            return [], [item.target]
        case Read():
            return list(item.sources), []
        case _:
            assert isinstance(item, Mark | Await)
            return [], []


def check(plan: Planned) -> list[tuple[Exchange, Copy]]:
    """Carry out a plan with the numbers of instructions for values; the exchanges it makes."""
    written: dict[tuple[int, int], int] = {}
    for spans in plan.planner.outcome(plan.planner._adopted).adopted:
        for span in spans:
            home = span._replace(arena=span.arena * plan.planner.devices)
            written.update(dict.fromkeys(slots_of(home), INPUTS))
    exchanges = list(plan.planner.exchanges)
    made = []
    for number, item in enumerate(plan.instructions):
        reads, writes = reads_and_writes(item)
        for source in reads:
            assert all(slot in written for slot in slots_of(source)), (number, item)
        if isinstance(item, Launch):
            device = plan.planner.blocks[item.block]
            assert {plan.device(slots) for slots in (*reads, *writes)} <= {device}
        if isinstance(item, Copy) and plan.device(item.source) != plan.device(item.target):
            exchange = exchanges.pop(0)
            ends = plan.device(item.source), plan.device(item.target)
            assert (exchange.source, exchange.target) == ends
            assert exchange.after == max(written[slot] for slot in slots_of(item.source))
            made.append((exchange, item))
        for target in writes:
            written.update(dict.fromkeys(slots_of(target), number))
    assert not exchanges
    return made


@pytest.mark.parametrize("name", PLANNED)
def test_every_launch_finds_what_it_reads_on_its_own_device(name):
    made = PLACED[name]()
    sent = check(Planned(made.function, made.columns))
    assert bool(sent) == (name not in SILENT)


def test_an_untaken_branch_and_a_loop_without_iterations_launch_nothing_elsewhere():
    for name in SILENT:
        made = PLACED[name]()
        plan = Planned(made.function, made.columns)
        assert all(plan.planner.blocks[launch.block] == 0 for launch in plan.schedule.launches)


@pytest.mark.parametrize("name", IN_TURN)
def test_the_same_for_programs_whose_calls_are_placed_in_turn(name):
    case = PROGRAMS[name].case(PROGRAMS[name].dtypes[0])
    columns = [list(column) for column in zip(*case.instances, strict=True)]
    with placed_in_turn():
        assert check(Planned(case.traced, columns))


def test_a_value_that_is_read_again_is_sent_once():
    weight = torch.eye(3)

    @ps.function
    def program(x, n):
        with ps.device("cpu:0"):
            fixed = torch.sin(x)

        def body(i, y):
            with ps.device("cpu:1"):
                return i + 1, torch.tanh(y @ weight + fixed)

        return ps.while_loop(lambda i, y: i < n, body, (0, x))[1]

    plan = Planned(program, [[torch.ones(3)] * 4, [5] * 4])
    sent = [exchange for exchange, _ in check(plan) if exchange.source == 0]
    assert len(plan.schedule.launches) == 6
    made_here = [exchange for exchange in sent if exchange.after != GIVEN]
    assert len(made_here) == 1


def test_the_same_call_has_the_same_plan():
    digests = set()
    for _ in range(2):
        made = loop_across_devices()
        digests.add(Planned(made.function, made.columns).schedule.digest())
    assert len(digests) == 1


def test_values_of_the_host_are_not_sent():
    @ps.function
    def program(x, n):
        def body(i, x):
            with ps.device("cpu:0"):
                x = x + i
            with ps.device("cpu:1"):
                return i + 1, x * i

        return ps.while_loop(lambda i, x: i < n, body, (0, x))[1]

    plan = Planned(program, [[torch.ones(3)] * 2, [3, 2]])
    for exchange, _ in check(plan):
        assert plan.planner.spaces[exchange.rows.arena * plan.planner.devices].kind.shape == (3,)
    assert np.all([exchange.reader >= 0 for exchange in plan.planner.exchanges])


def test_slots_are_bounded_by_the_iterations_in_flight():
    def slots(most: int | None) -> int:
        @ps.function
        def loop(x, n):
            def body(i, a, b):
                with ps.device("cpu:0"):
                    a = torch.sin(a)
                with ps.device("cpu:1"):
                    b = torch.cos(a + b)
                return i + 1, a, b

            return ps.while_loop(lambda i, a, b: i < n, body, (0, x, x), parallel_iterations=most)[
                2
            ]

        plan = Planned(loop, [[torch.ones(2)], [4000]])
        return max(space.end for space in plan.planner.machine.spaces)

    assert slots(2) < 2100
    assert slots(None) > 4000
