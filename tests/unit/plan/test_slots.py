"""Slots of arenas: consecutive while there is room, reused when nobody refers to them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.plan import slots as slots_module
from penstock.plan.schedule import Chunk, Kind, Picks, Span
from penstock.plan.slots import FIRST_CHUNK, SlotSpace, ranges

FLOAT = Kind("float32", (), "cpu")


def new_space() -> SlotSpace:
    return SlotSpace(0, FLOAT)


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def slots_of(target: Span | Picks) -> list[int]:
    if isinstance(target, Span):
        return list(range(target.start, target.start + target.count))
    return target.slots.tolist()


def full_space() -> tuple[SlotSpace, Span]:
    """A space whose first chunk is taken by one span."""
    space = new_space()
    taken = space.allocate(FIRST_CHUNK)
    assert isinstance(taken, Span)
    return space, taken


def test_new_values_follow_each_other():
    space = new_space()
    assert space.allocate(3) == Span(0, 0, 3)
    assert space.allocate(2) == Span(0, 3, 2)
    assert space.live() == 5


def test_the_runner_is_told_of_each_chunk_once():
    space = new_space()
    space.allocate(FIRST_CHUNK)
    space.allocate(1)
    assert space.unannounced == [
        Chunk(0, 0, FIRST_CHUNK),
        Chunk(0, FIRST_CHUNK, FIRST_CHUNK),
    ]


def test_a_slot_is_in_use_while_it_is_referred_to():
    space = new_space()
    target = space.allocate(2)
    space.add(integers(0, 0, 1), 1)
    space.release(target)
    assert space.live() == 2
    space.add(integers(0, 1), -1)
    assert space.live() == 1
    space.add(integers(0), -1)
    assert space.live() == 0


def test_references_to_no_slot_are_absorbed():
    space = new_space()
    space.allocate(2)
    space.add(integers(-1, -1), -1)
    assert space.live() == 2
    space.allocate(FIRST_CHUNK)  # grows; the entry for "no slot" moves along
    assert space.live() == FIRST_CHUNK + 2


def test_a_full_arena_reuses_what_is_free_before_it_grows():
    space, taken = full_space()
    space.release(taken)
    assert space.allocate(FIRST_CHUNK) == taken
    assert space.end == FIRST_CHUNK


def test_an_arena_that_is_more_than_half_in_use_grows():
    space, taken = full_space()
    space.add(np.arange(600, FIRST_CHUNK), 1)
    space.release(taken)  # 600 of 1024 are free
    assert space.allocate(600) == Span(0, 0, 600)
    assert space.allocate(600).start == FIRST_CHUNK
    assert space.end == 2 * FIRST_CHUNK


def test_scattered_free_slots_are_reused_one_by_one():
    space, taken = full_space()
    odd = np.arange(1, FIRST_CHUNK, 2)
    space.add(odd, 1)
    space.release(taken)
    found = space.allocate(10)
    assert isinstance(found, Picks)
    assert slots_of(found) == list(range(0, 20, 2))
    assert slots_of(space.allocate(2)) == [20, 22]
    space.release(found)
    assert space.live() == len(odd) + 2


def test_a_run_is_found_among_scattered_free_slots():
    space, taken = full_space()
    kept = np.r_[np.arange(1, 400, 2), np.arange(800, FIRST_CHUNK)]
    space.add(kept, 1)
    space.release(taken)  # free: 0, 2, 4, ..., 398 and 400 to 799
    assert space.allocate(100) == Span(0, 400, 100)
    assert slots_of(space.allocate(2)) == [500, 501]
    assert slots_of(space.allocate(299))[:3] == [0, 2, 4]  # no run of 299 is left


def test_where_a_run_is_demanded_and_there_is_none_the_arena_grows():
    space, taken = full_space()
    space.add(np.arange(1, FIRST_CHUNK, 2), 1)
    space.release(taken)
    assert space.allocate(5, as_run=True) == Span(0, FIRST_CHUNK, 5)


def test_adopted_slots_are_never_reused():
    space = new_space()
    start = space.adopt(7)
    assert start == 0
    for _ in range(5):
        target = space.allocate(FIRST_CHUNK)
        assert min(slots_of(target)) >= 7
        space.release(target)
    assert space.end <= 7 + 2 * FIRST_CHUNK


def test_the_rest_of_a_chunk_is_handed_out_once():
    space = new_space()
    held = space.allocate(1000)
    space.allocate(100)  # does not fit; the rest of the first chunk stays for later
    assert set(slots_of(space.allocate(900))).isdisjoint(slots_of(held))


def test_elements_of_a_sequence_that_is_referred_to_are_in_use():
    space, taken = full_space()
    numbers = space.sequences.create(integers(10, 20), integers(5, 0))
    space.release(taken)
    assert space.live() == 5
    space.sequences.add(numbers, -1)
    assert space.live() == 0


def test_numbers_of_sequences_are_reused():
    table = new_space().sequences
    for _ in range(200):
        numbers = table.create(np.zeros(10, np.int64), np.zeros(10, np.int64))
        assert table.counts[numbers].tolist() == [1] * 10
        table.add(numbers, -1)
    assert len(table.base) == 256


def test_ranges_come_one_after_the_other():
    assert ranges(integers(10, 3, 7), integers(2, 0, 3)).tolist() == [10, 11, 7, 8, 9]
    assert ranges(integers(), integers()).tolist() == []


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 700), st.booleans(), st.integers(0, 5)), max_size=40))
def test_no_slot_is_handed_out_while_it_is_in_use(steps):
    """Random allocations, each released a few steps later."""
    space = new_space()
    held: list[tuple[int, Span | Picks]] = []
    for time, (count, as_run, stay) in enumerate(steps):
        in_use = {slot for _, target in held for slot in slots_of(target)}
        target = space.allocate(count, as_run=as_run)
        slots = slots_of(target)
        assert len(set(slots)) == count
        assert in_use.isdisjoint(slots)
        assert max(slots) < space.end
        assert not as_run or isinstance(target, Span)
        held.append((time + stay, target))
        for _, over in [item for item in held if item[0] <= time]:
            space.release(over)
        held = [item for item in held if item[0] > time]
        assert space.live() == sum(len(slots_of(target)) for _, target in held)


def test_an_arena_does_not_grow_with_large_inputs(monkeypatch):
    """They are never free, so they must not count among the slots of which half should be."""
    monkeypatch.setattr(slots_module, "LARGE", 1 << 12)
    space = new_space()
    space.adopt(20_000)
    for _ in range(100):
        space.release(space.allocate(300))
    assert space.end - space.given <= 4 * FIRST_CHUNK


def test_an_arena_of_large_values_begins_with_few_slots(monkeypatch):
    """They are used again instead of taking more memory."""
    monkeypatch.setattr(slots_module, "LARGE", 20 * 64)
    space = SlotSpace(0, Kind("float32", (8, 8), "cpu"))
    for _ in range(100):
        space.release(space.allocate(2))
    assert space.end == 20
