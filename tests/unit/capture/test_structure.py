from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from penstock.calls.structure import (
    StructureMismatchError,
    flatten,
    flatten_like,
    leaf_paths,
    map_leaves,
    unflatten,
)


class Pair(NamedTuple):
    left: object
    right: object


@dataclass(frozen=True, slots=True)
class Checked:
    value: object
    extra: object = field(init=False, default=7)

    def __post_init__(self):
        assert isinstance(self.value, int)


def test_every_kind_of_container_comes_back_as_it_was():
    value = {"a": (1, [2, None]), "b": Pair(3, Checked(4))}
    leaves, structure = flatten(value)
    assert leaves == [1, 2, None, 3, 4, 7]
    assert unflatten(structure, leaves) == value


def test_a_dataclass_is_put_back_without_running_its_checks():
    assert map_leaves(str, Checked(4)).value == "4"


def test_equal_nesting_is_an_equal_hashable_structure():
    first, second = flatten(Pair(1, {"a": 2}))[1], flatten(Pair(5, {"a": 6}))[1]
    assert first == second
    assert hash(first) == hash(second)


def test_leaves_follow_the_expected_order_of_keys():
    _, structure = flatten({"a": 0, "b": 0})
    assert flatten_like(structure, {"b": 2, "a": 1}) == [1, 2]


@pytest.mark.parametrize("other", [[1, 2], Pair(1, 2), (1,), (1, (2,)), 1])
def test_another_nesting_is_a_mismatch(other):
    _, structure = flatten((0, 0))
    with pytest.raises(StructureMismatchError):
        flatten_like(structure, other)


def test_paths_read_as_a_user_would_write_them():
    value = {"hidden": (1, 2), "pair": Pair(3, Checked(4))}
    assert leaf_paths(value, "state") == [
        "state['hidden'][0]",
        "state['hidden'][1]",
        "state['pair'].left",
        "state['pair'].right.value",
        "state['pair'].right.extra",
    ]
