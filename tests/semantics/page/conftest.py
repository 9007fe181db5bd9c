"""The fixture through which the tests of docs/semantics.md look into a run."""

from collections.abc import Iterator

import pytest

from penstock.plan.planners import planning
from tests.semantics.page.watch import Watch

collect_ignore = ["watch.py"]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Everything that the calls of a test do inside the machine."""
    with planning("never"):
        yield Watch(monkeypatch)
