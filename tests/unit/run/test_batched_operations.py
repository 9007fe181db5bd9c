"""Everyday operations, batched, against the same function run row by row."""

from __future__ import annotations

import warnings

import pytest
import torch

from penstock.errors import PenstockWarning
from penstock.run.batched import build_batched

from .batched_cases import CASES


def rows_apart(function, given, rows, arguments):
    results = [
        function(*(a[i] if g.kind == "row" else a for g, a in zip(given, arguments, strict=True)))
        for i in range(rows)
    ]
    return [torch.stack(column) for column in zip(*results, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_an_everyday_operation_has_a_batched_form_that_agrees_with_rows_apart(name):
    given, function = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", PenstockWarning)
        block = build_batched(function, [g.spec() for g in given], name=name)
    assert block.unbatched == ()
    assert "def block" in block.source
    generator = torch.Generator().manual_seed(1)
    for rows in (1, 2, 11):
        arguments = [g.make(rows, generator) for g in given]
        with torch.no_grad():
            expected = rows_apart(function, given, rows, arguments)
            actual = block(rows, *arguments)
        for left, right in zip(actual, expected, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5, equal_nan=True)
