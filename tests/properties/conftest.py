"""Verifies every pass over random programs."""

import pytest

from tests.inside import verified_passes


@pytest.fixture(scope="session", autouse=True)
def _verified():
    with verified_passes():
        yield
