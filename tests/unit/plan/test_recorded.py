"""Recorded steps are planned into few launches that leave the right values in the right slots."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.plan.schedule import Copy, Picks, Span
from tests.unit.plan.random_steps import FORMS, RandomProgram, chain, digest, drop_all, run_random
from tests.unit.plan.recorded_scope import Scope, launches, stored

POLICIES = ["rank", "depth", "agenda"]

every_policy = pytest.mark.parametrize("policy", POLICIES)


@every_policy
@pytest.mark.parametrize("seed", range(15))
def test_random_steps_leave_what_running_them_one_by_one_leaves(policy, seed):
    scope = Scope(policy)
    run_random(scope, seed)
    drop_all(scope)


@every_policy
def test_the_same_records_give_the_same_instructions(policy):
    first, second = (run_random(Scope(policy), 7) for _ in range(2))
    assert [digest(items) for items in first] == [digest(items) for items in second]


@every_policy
def test_slots_are_used_again_inside_a_flush(policy):
    scope = Scope(policy)
    RandomProgram(scope, 3).record(10)
    last = [scope.launch(0, [], [form])[0] for form in FORMS for _ in range(40)]
    for _ in range(30):
        last = [scope.launch(1, [value], [scope.forms[value]])[0] for value in last]
    scope.flush(last)
    made = 30 * 40 * 7  # slots in the arena of numbers
    assert max(space.end for space in scope.planner.spaces) <= made // 4
    drop_all(scope)


def test_a_long_loop_over_flushes_takes_no_more_room():
    scope = Scope()
    state = [scope.launch(0, [], [stored(length=3)])[0] for _ in range(70)]
    for _ in range(40):
        scope.flush(state, scope.kept)
        state = [scope.launch(1, [value], [stored(length=3)])[0] for value in state]
    assert scope.planner.spaces[0].end <= 1024


# ---- how many launches ---------------------------------------------------------------------------


def combine(scope: Scope, height: int, instance: int) -> int:
    if height == 0:
        return scope.launch(0, [], instance=instance)[0]
    below = [combine(scope, height - 1, instance) for _ in range(2)]
    return scope.launch(1, below, instance=instance)[0]


@every_policy
def test_a_tree_takes_one_launch_for_each_level(policy):
    scope = Scope(policy)
    roots = [combine(scope, 5, instance) for instance in range(3)]
    rows = [launch.rows for launch in launches(scope.flush(roots))]
    assert rows == [96, 48, 24, 12, 6, 3]


def test_trees_of_different_height_take_as_many_launches_as_the_highest():
    scope = Scope()
    roots = [combine(scope, height, height) for height in range(7)]
    assert len(launches(scope.flush(roots))) == 7


def uneven(scope: Scope, height: int, instance: int, random) -> int:
    """A tree whose nodes have two or three children; all nodes end with the same step."""
    if height == 0:
        return scope.launch(0, [], instance=instance)[0]
    arity = 2 + int(random.integers(2))
    below = [uneven(scope, height - 1, instance, random) for _ in range(arity)]
    joined = scope.launch(1, below, instance=instance)[0]
    if arity == 3:
        joined = scope.launch(2, [joined], instance=instance)[0]
    return scope.launch(3, [joined], instance=instance)[0]


def test_nodes_of_all_arities_meet_in_what_they_share():
    scope = Scope()
    random = np.random.default_rng(0)
    roots = [uneven(scope, 4, instance, random) for instance in range(3)]
    found = launches(scope.flush(roots))
    assert sum(launch.block == 3 for launch in found) == 4
    assert len(found) <= 1 + 4 * 4


@every_policy
def test_a_chain_takes_one_launch_for_each_step(policy):
    scope = Scope(policy)
    ends = [chain(scope, 20, instance) for instance in range(4)]
    found = launches(scope.flush(ends))
    assert [launch.rows for launch in found] == [4] * 21


@pytest.mark.parametrize(("policy", "heads"), [("rank", 1), ("agenda", 1), ("depth", 10)])
def test_heads_at_different_depths_wait_for_each_other_unless_depth_decides(policy, heads):
    scope = Scope(policy)
    ends = [
        scope.launch(2, [chain(scope, length, length)], instance=length)[0] for length in range(10)
    ]
    found = launches(scope.flush(ends))
    assert sum(launch.block == 2 for launch in found) == heads
    assert sum(launch.rows for launch in found if launch.block == 2) == 10


def test_rows_of_a_launch_are_in_recording_order_with_their_instances():
    scope = Scope()
    for instance in (3, 1, 2):
        chain(scope, instance, instance)
    recorded = scope.recorded([])
    scope.planner.flush(recorded)
    assert [rows.tolist() for rows in scope.planner.launched] == [[3, 1, 2], [3, 1, 2], [3, 2], [3]]


def test_uniforms_keep_steps_apart():
    scope = Scope()
    for wire in (5, 6, 5):
        scope.launch(0, [], shared=(wire,))
    assert sorted(launch.rows for launch in launches(scope.flush())) == [1, 2]


# ---- aliases and copies --------------------------------------------------------------------------


def test_aliases_of_aliases_cost_nothing_and_share_slots():
    scope = Scope()
    whole = scope.launch(0, [], [stored(2, length=4)])[0]
    middle = scope.alias(whole, (1, 3))[0]
    last = scope.alias(middle, (2, None), (0, 2))
    again = scope.alias(last[1], (1, None))[0]
    scope.launch(1, [last[0], again])
    instructions = scope.flush()
    assert len(launches(instructions)) == 2
    _, slots = scope.planner.where(np.array([whole, middle, *last, again]))
    assert (slots - slots[0]).tolist() == [0, 1, 3, 1, 2]
    drop_all(scope)


def test_an_alias_keeps_only_its_own_slots():
    scope = Scope()
    whole = scope.launch(0, [], [stored(length=4)])[0]
    element = scope.alias(whole, (2, None))[0]
    scope.flush([element])
    assert scope.planner.live() == 1
    scope.launch(1, [element])
    scope.flush([], [element])
    assert scope.planner.live() == 0


def test_copies_that_are_ready_together_are_one_instruction():
    scope = Scope()
    leaves = [scope.launch(0, [])[0] for _ in range(6)]
    pairs = [scope.copy(leaves[:2], stored(length=2)), scope.copy(leaves[2:4], stored(length=2))]
    triple = scope.copy([leaves[0], *leaves[4:]], stored(length=3))
    instructions = scope.flush()
    (copied,) = [item for item in instructions if isinstance(item, Copy)]
    assert isinstance(copied.source, Picks)
    assert copied.target == Span(0, copied.target.start, 7)
    both = scope.copy([*pairs, triple], stored(length=7))
    (copied,) = [item for item in scope.flush() if isinstance(item, Copy)]
    assert (copied.source.slots.shape, copied.target.count) == ((7,), 7)
    assert len(scope.values[both]) == 7
    drop_all(scope)


def test_a_copy_may_go_to_an_arena_of_larger_values():
    scope = Scope()
    leaves = [scope.launch(0, [], [stored(length=2)])[0] for _ in range(4)]
    scope.copy(leaves[:2], stored(2, length=2))
    scope.copy(leaves[1:], stored(2, length=3))
    (copied,) = [item for item in scope.flush() if isinstance(item, Copy)]
    spaces = scope.planner.spaces
    assert spaces[copied.source.arena].kind == stored().kind
    assert spaces[copied.target.arena].kind == stored(2).kind
    assert (copied.source.slots.shape, copied.target.count) == ((10,), 5)
    drop_all(scope)


def test_a_value_may_be_taken_twice_by_one_step():
    scope = Scope()
    value = scope.launch(0, [])[0]
    other = scope.launch(1, [value, value])[0]
    assert len(launches(scope.flush([other]))) == 2
    assert scope.planner.live() == 1


def test_inputs_are_pinned_and_counted_only_while_somebody_uses_them():
    scope = Scope()
    columns = [scope.input(stored(length=2), seed) for seed in range(3)]
    results = [scope.launch(0, [value])[0] for value in columns]
    scope.flush([*results, columns[0]])
    assert scope.planner.live() == 3 + 2
    scope.flush([], [columns[0]])
    assert scope.planner.live() == 3
    drop_all(scope)


def test_a_flush_may_record_no_step_at_all():
    scope = Scope()
    value = [scope.input(stored(length=2), seed) for seed in range(3)][2]
    part = scope.alias(value, (1, None))[0]
    assert scope.flush([part]) == []
    assert scope.planner.live() == 1
    assert scope.flush([], [part]) == []
    assert scope.planner.live() == 0
