"""The fixture through which the tests of docs/semantics.md look into a run."""

import pytest

from tests.semantics.page.watch import Watch

collect_ignore = ["watch.py"]


@pytest.fixture(autouse=True)
def _interpreted(interpreted_loops: None) -> None:
    """The page tells how the machine runs loops."""


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Everything that the calls of a test do inside the machine."""
    return Watch(monkeypatch)
