"""Pieces of launches: all rows are there once, each with the slots that it had."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.plan.divided import may_be_divided, piece_of, pieces_of_rows
from penstock.plan.schedule import Hosted, Launch, Picks, Shared, Sized, Span, slots_of


@pytest.mark.parametrize(("rows", "width"), [(10, 4), (10, 5), (10, 9), (7, 1), (1000, 333)])
def test_pieces_have_all_rows_in_order_and_are_about_as_wide(rows, width):
    pieces = list(pieces_of_rows(rows, width))
    assert [row for piece in pieces for row in piece] == list(range(rows))
    widths = set(map(len, pieces))
    assert max(widths) <= width
    assert max(widths) - min(widths) <= 1
    assert len(pieces) == -(-rows // width)


def wide_launch():
    picked = np.array([9, 4, 4, 7, 1, 0])
    operands = (
        Span(0, 10, 6),
        Picks(1, picked),
        Span(2, 100, 12, length=2),
        Picks(3, np.arange(18)[::-1].copy(), length=3),
        Hosted(np.arange(6) * 11),
        Shared(5),
        Sized(8),
    )
    return Launch(3, 6, operands, (Span(4, 50, 6), Picks(5, picked)))


def test_rows_of_pieces_have_the_slots_that_they_had():
    launch = wide_launch()
    pieces = [piece_of(launch, rows) for rows in pieces_of_rows(6, 4)]
    assert [piece.rows for piece in pieces] == [3, 3]
    assert all(piece.block == 3 for piece in pieces)
    for number, whole in enumerate(launch.operands[:4]):
        parts = [piece.operands[number] for piece in pieces]
        assert np.concatenate(list(map(slots_of, parts))).tolist() == slots_of(whole).tolist()
        assert {part.length for part in parts} == {whole.length}
    assert [piece.operands[4].values.tolist() for piece in pieces] == [[0, 11, 22], [33, 44, 55]]
    assert all(piece.operands[5:] == launch.operands[5:] for piece in pieces)
    for number, whole in enumerate(launch.targets):
        parts = [piece.targets[number] for piece in pieces]
        assert np.concatenate(list(map(slots_of, parts))).tolist() == slots_of(whole).tolist()


def test_what_rows_have_in_common_keeps_a_launch_whole():
    launch = wide_launch()
    assert may_be_divided(launch)
    whole = Span(4, 0, 6, is_whole=True)
    assert not may_be_divided(launch._replace(targets=(whole,)))
    sizes = Hosted(np.arange(2))
    assert not may_be_divided(launch._replace(operands=(*launch.operands, sizes)))
