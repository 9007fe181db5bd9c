"""Arrays, boxes and rows: what names what, who counts, and what is used again."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.plan.arrays import UNWRITTEN, ArrayTable
from penstock.plan.boxes import BoxTable
from penstock.plan.rows import Rows
from penstock.plan.schedule import Kind
from penstock.plan.slots import SlotSpace


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.fixture
def space() -> SlotSpace:
    space = SlotSpace(0, Kind("float32", (), "cpu"))
    space.allocate(100)
    space.counts[:100] = 0
    return space


@pytest.fixture
def arrays(space: SlotSpace) -> ArrayTable:
    return ArrayTable(space)


def elements(table: ArrayTable, number: int) -> list[int]:
    return table.all_slots(integers(number)).tolist()


def test_a_new_array_has_nothing_written(arrays):
    first, second = arrays.create(integers(2, 3))
    assert elements(arrays, first) == [UNWRITTEN] * 2
    assert elements(arrays, second) == [UNWRITTEN] * 3
    assert arrays.live() == 2


def test_a_written_element_keeps_its_slot_in_use(arrays, space):
    numbers = arrays.create(integers(2))
    arrays.write(numbers, integers(1), integers(7))
    assert arrays.read(numbers, integers(1)).tolist() == [7]
    assert space.live() == 1
    arrays.write(numbers, integers(1), integers(8))
    assert space.counts[[7, 8]].tolist() == [0, 1]


def test_a_version_that_others_refer_to_is_copied(arrays, space):
    numbers = arrays.of_slots(integers(4, 5), integers(2))
    arrays.add(numbers, 1)
    written = arrays.copy(numbers, integers(2), may_steal=True)
    arrays.write(written, integers(0), integers(9))
    assert elements(arrays, numbers[0]) == [4, 5]
    assert elements(arrays, written[0]) == [9, 5]
    assert space.counts[[4, 5, 9]].tolist() == [1, 2, 1]


def test_a_version_that_nobody_else_refers_to_is_written_in_place(arrays):
    numbers = arrays.of_slots(integers(4, 5), integers(2))
    written = arrays.copy(numbers, integers(2), may_steal=True)
    assert written.tolist() == numbers.tolist()
    assert arrays.counts[numbers].tolist() == [2]  # the old name and the new


def test_a_version_that_is_looked_at_again_is_not_stolen(arrays):
    numbers = arrays.of_slots(integers(4, 5), integers(2))
    assert arrays.copy(numbers, integers(2), may_steal=False).tolist() != numbers.tolist()


def test_an_array_that_gets_longer_is_copied(arrays):
    numbers = arrays.create(integers(1), can_grow=True)
    arrays.write(numbers, integers(0), integers(3))
    longer = arrays.copy(numbers, integers(4), may_steal=True)
    assert elements(arrays, longer[0]) == [3] + [UNWRITTEN] * 3
    assert arrays.can_grow[longer].all()


def test_an_array_that_nobody_refers_to_gives_its_elements_up(arrays, space):
    numbers = arrays.of_slots(integers(4, 5, 4), integers(3))
    arrays.add(numbers, 1)
    arrays.add(numbers, -1)
    assert space.live() == 2
    arrays.add(numbers, -1)
    assert space.live() == arrays.live() == 0


def test_numbers_and_room_of_dead_arrays_are_used_again(arrays, space):
    kept = arrays.of_slots(np.arange(20), integers(20))
    for _ in range(500):
        numbers = arrays.of_slots(np.arange(20), np.full(1, 20))
        arrays.add(numbers, -1)
    assert elements(arrays, kept[0]) == list(range(20))
    assert len(arrays.base) == 256
    assert len(arrays.pool) <= 2048


def new_boxes() -> tuple[BoxTable, list[SlotSpace]]:
    spaces: list[SlotSpace] = []

    def space(shape: tuple[int, ...]) -> SlotSpace:
        for made in spaces:
            if made.kind.shape == shape:
                return made
        spaces.append(SlotSpace(len(spaces), Kind("float32", shape, "cpu")))
        return spaces[-1]

    return BoxTable(space, spaces), spaces


def test_a_box_names_an_arena_and_a_slot():
    boxes, spaces = new_boxes()
    wide, tall = boxes.space((2, 7)), boxes.space((5, 2))
    for space in (wide, tall):
        space.allocate(4)
        space.counts[:4] = 0
    numbers = np.r_[boxes.create(0, integers(1, 2)), boxes.create(1, integers(3))]
    assert boxes.sizes(numbers, 0).tolist() == [2, 2, 5]
    assert boxes.sizes(numbers, 1).tolist() == [7, 7, 2]
    assert [space.live() for space in spaces] == [2, 1]
    boxes.add(integers(0, 2), -1)
    assert [space.live() for space in spaces] == [1, 0]
    assert boxes.live() == 1


def new_rows(**columns: int) -> Rows:
    waits = integers(2, 3)
    return Rows(("int64", "bool"), columns.get("slots", 2), columns.get("children", 1), waits, 4)


def test_rows_that_ended_are_used_again():
    rows = new_rows()
    first = rows.create(3)
    rows.end(first[:2])
    again = rows.create(3)
    assert set(again.tolist()) == {0, 1, 3}
    assert rows.live == 4
    assert rows.top == 4


def test_rows_stay_few_however_many_there_have_been():
    rows = new_rows()
    for _ in range(1000):
        rows.end(rows.create(3))
    assert rows.live == 0
    assert rows.capacity == 4


def test_columns_keep_their_values_when_they_grow():
    rows = new_rows()
    first = rows.create(3)
    rows.host[0][first], rows.slots[1][first], rows.todo[first] = [7, 8, 9], [1, 2, 3], [4, 5, 6]
    rows.create(100)
    assert rows.host[0][first].tolist() == [7, 8, 9]
    assert rows.slots[1][first].tolist() == [1, 2, 3]
    assert rows.todo[first].tolist() == [4, 5, 6]
    assert rows.host[1].dtype == np.bool_


def test_a_new_row_waits_for_everything_and_has_no_slot():
    rows = new_rows()
    first = rows.create(2)
    rows.pending[:, first] = 0
    rows.slots[:, first] = 5
    rows.end(first)
    again = rows.create(2)
    assert rows.pending[:, again].tolist() == [[2, 2], [3, 3]]
    assert (rows.slots[:, again] == -1).all()
