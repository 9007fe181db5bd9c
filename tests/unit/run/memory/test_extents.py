"""Room in a file or a slab: no two takers share bytes, and what is given back is found again."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock.run.memory.extents import ALIGNMENT, Extents, rounded


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), max_size=60))
def test_extents_never_overlap_and_free_ones_are_merged(actions):
    extents = Extents()
    taken = []
    for takes, number in actions:
        if takes or not taken:
            found = extents.take(number)
            if found is None:
                extents.grow(rounded(number))
                found = extents.take(number)
            assert found.size >= number
            assert found.start % ALIGNMENT == 0
            taken.append(found)
        else:
            extents.give_back(taken.pop(number % len(taken)))
        both = sorted([*taken, *extents.free])
        assert sum(each.size for each in both) == extents.end
        assert all(left.end == right.start for left, right in itertools.pairwise(both))
        free = extents.free
        assert all(left.end < right.start for left, right in itertools.pairwise(free))
        assert extents.used == sum(each.size for each in taken)
