"""The scripts in examples/ run as they are; each compares itself with the plain loop."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.usefixtures("unchanged_torch")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_as_it_is(path, capsys):
    torch.set_default_dtype(torch.float32)
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        torch.set_default_dtype(torch.float64)
    assert capsys.readouterr().out
