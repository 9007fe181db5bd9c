"""Options, profiles and fixtures that every test of the project shares.

PENSTOCK_FUZZ=N in the environment draws N random examples for each property; without it a small,
fixed set is used, so that a run can be repeated.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

#: Tests of compiled launches ask for them; the others do not wait for a compiler.
os.environ["PENSTOCK_FUSION"] = "never"

#: Tensors of tests are small, and workers as many as cores: threads of torch would only wait for
#: each other, busily. It is read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

GOLDEN = Path(__file__).parent / "tests" / "golden"

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "ci", max_examples=20, derandomize=True, deadline=None, suppress_health_check=_SLOW_IS_FINE
)
settings.register_profile(
    "fuzz",
    max_examples=int(os.environ.get("PENSTOCK_FUZZ") or 1000),
    deadline=None,
    suppress_health_check=_SLOW_IS_FINE,
)
settings.load_profile("fuzz" if os.environ.get("PENSTOCK_FUZZ") else "ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden instead of comparing"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped, by name, where there is no device."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    """Modules, tests and their parameters stay: collections of garbage need not look at them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def young_objects_only() -> None:
    """What was there before the module is not looked at by the collector of garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _plain_planning() -> Iterator[None]:
    """Calls are planned by the machine that can be looked into, unless a test asks for another:
    otherwise it would depend on the tests before.
    """
    from penstock.plan.planners import planning

    with planning("never"):
        yield


@pytest.fixture(scope="module")
def interpreted_loops() -> Iterator[None]:
    """Loops over scalars go through the machine, for tests that look into it."""
    from penstock.run.native.choice import native_loops

    with native_loops(False):
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares text with tests/golden/NAME.txt, or rewrites that file."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        text = text.rstrip("\n") + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), f"{path.name} does not exist yet: run pytest --update-golden"
        assert text == path.read_text(encoding="utf-8")

    return compare
