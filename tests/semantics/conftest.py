"""Verifies every pass over the programs of the table, which is imported only once."""

import pytest

from tests.inside import verified_passes

#: Not for the doctest collector, which would import the table a second time.
collect_ignore = ["programs", "agreement.py", "table.py", "ways.py"]


@pytest.fixture(scope="session", autouse=True)
def _verified():
    with verified_passes():
        yield
