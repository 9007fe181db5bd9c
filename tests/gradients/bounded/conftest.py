"""What all tests of memory policies start with."""

import pytest

from penstock.run.memory.lasting import give_back_lasting


@pytest.fixture(autouse=True)
def nothing_is_kept_of_other_tests() -> None:
    """Where an allocation fails, memory that earlier calls have left goes before saved values."""
    give_back_lasting()
