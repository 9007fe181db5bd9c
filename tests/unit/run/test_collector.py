"""The garbage collector waits inside, and is as it was afterwards."""

from __future__ import annotations

import gc

import pytest

from penstock.run.collector import collector_waits


@pytest.mark.parametrize("runs", [True, False])
def test_the_collector_is_as_it_was_when_all_have_left(runs: bool) -> None:
    before = gc.isenabled()
    (gc.enable if runs else gc.disable)()
    try:
        with collector_waits():
            with pytest.raises(ValueError, match="inner"), collector_waits():
                raise ValueError("inner")
            assert not gc.isenabled()
        assert gc.isenabled() == runs
    finally:
        (gc.enable if before else gc.disable)()
