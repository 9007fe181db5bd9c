"""Launches whose insides are wide run in pieces of rows, and give what they give as a whole."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F

import penstock as ps
from penstock.run import pieces, prepared

WIDE = torch.nn.Linear(3, 50, dtype=torch.float64)


@ps.function
def narrow(x):
    return F.relu(WIDE(x)).sum(-1)


@ps.function
def wide(x):
    return F.relu(WIDE(x))


@pytest.fixture(autouse=True)
def cache_of_few_rows(monkeypatch):
    monkeypatch.setattr(pieces, "IN_CACHE", 4 * 50)


def run_noting_pieces(function, x):
    """What a function gives, and how many launches ran in pieces."""
    run = prepared.run_in_pieces
    with torch.no_grad(), patch.object(prepared, "run_in_pieces", side_effect=run) as noted:
        found = function.map(x, out="stack")
    return found, noted.call_count


@pytest.mark.parametrize(("rows", "count"), [(1, 0), (4, 0), (5, 1), (30, 1)])
def test_a_launch_with_wide_insides_runs_in_pieces(rows, count):
    x = torch.randn(rows, 3, dtype=torch.float64)
    found, pieces_run = run_noting_pieces(narrow, x)
    torch.testing.assert_close(found, F.relu(WIDE(x)).sum(-1))
    assert pieces_run == count


def test_what_gives_all_that_it_computes_runs_whole():
    x = torch.randn(30, 3, dtype=torch.float64)
    found, pieces_run = run_noting_pieces(wide, x)
    torch.testing.assert_close(found, F.relu(WIDE(x)))
    assert pieces_run == 0


@pytest.mark.parametrize(("rows", "count"), [(20, 0), (21, 1)])
def test_a_matrix_that_stays_in_no_cache_is_read_for_enough_rows_at_once(rows, count, monkeypatch):
    """Four rows a piece would read it from memory again and again."""
    monkeypatch.setattr(pieces, "ENOUGH_ROWS", 20)
    large = torch.nn.Linear(7, 50, dtype=torch.float64)

    @ps.function
    def narrow(x):
        return F.relu(large(x)).sum(-1)

    x = torch.randn(rows, 7, dtype=torch.float64)
    found, pieces_run = run_noting_pieces(narrow, x)
    torch.testing.assert_close(found, F.relu(large(x)).sum(-1))
    assert pieces_run == count


def test_the_instance_that_fails_is_named():
    table = torch.randn(7, 50)

    @ps.function
    def look_up(word):
        return F.embedding(word, table).sum()

    with torch.no_grad(), pytest.raises(IndexError) as caught:
        look_up.map([0, 1, 2, 3, 4, 9, 6], out="stack")
    assert any("instance 5" in note for note in caught.value.__notes__)
