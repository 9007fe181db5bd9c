"""Rows of the host come to a device before they are wanted, in whatever order streams run."""

from __future__ import annotations

import pytest
import torch

from penstock.run.memory import pinned, read_ahead
from penstock.run.memory.read_ahead import MOST_PIECES, ReadAhead
from tests.unit.run.memory.simulated_streams import simulated_streams

CPU = torch.device("cpu")

#: A piece has four rows.
ROWS, WIDTH = 21, 6


@pytest.fixture
def uploads(monkeypatch):
    """The first values of all pieces that were brought."""
    monkeypatch.setattr(read_ahead, "PIECE", 4 * WIDTH * 4 + 10)
    seen = []
    upload = pinned.upload

    def noted(source, device, stream):
        seen.append(int(source.view(torch.float32)[0]) // WIDTH)
        return upload(source, device, stream)

    monkeypatch.setattr(pinned, "upload", noted)
    return seen


def read(streams, ahead, x, order):
    """What launches see of rows that are fetched in some order, their memory being used again."""
    seen = []
    for row in order:
        values = ahead.fetch(x[row])
        streams.launch(lambda values=values: seen.append(values.clone()))
        assert len(ahead.pieces) <= MOST_PIECES
    return seen


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("direction", [1, -1])
def test_rows_are_those_of_the_host_and_each_piece_comes_once(seed, direction, uploads):
    x = torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH)
    order = range(ROWS)[::direction]
    with simulated_streams(seed) as streams:
        ahead = ReadAhead(CPU)
        seen = read(streams, ahead, x, order)
        streams.finish()
        ahead.close()
    assert torch.equal(torch.stack(seen), x[list(order)])
    assert uploads == [0, 4, 8, 12, 16, 20][::direction]


def test_the_next_piece_is_asked_for_with_the_first_row_of_one(uploads):
    x = torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH)
    with simulated_streams(0) as streams:
        ahead = ReadAhead(CPU)
        ahead.fetch(x[0])
        assert uploads == [0, 4]
        ahead.fetch(x[4])
        assert uploads == [0, 4, 8]
        streams.finish()
        ahead.close()


def test_the_caller_may_write_to_his_memory_once_reading_is_over(uploads):
    x = torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH)
    expected = x.clone()
    with simulated_streams(0) as streams:
        ahead = ReadAhead(CPU)
        seen = read(streams, ahead, x, range(ROWS))
        ahead.close()
        x.zero_()
        streams.finish()
    assert torch.equal(torch.stack(seen), expected)


def test_small_tensors_and_rows_with_gaps_come_by_themselves(uploads):
    x = torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH)
    ahead = ReadAhead(CPU)
    assert torch.equal(ahead.fetch(x[:2, 1:3]), x[:2, 1:3])
    assert torch.equal(ahead.fetch(torch.ones(3)), torch.ones(3))
    assert not uploads


def test_rows_of_two_types_and_sizes_share_a_piece(uploads):
    """What lies in a piece is found there, whatever was read of it before."""
    x = torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH)
    bits = x.view(torch.int32)
    with simulated_streams(0) as streams:
        ahead = ReadAhead(CPU)
        found = [ahead.fetch(x[1]), ahead.fetch(bits[2]), ahead.fetch(x[3, 2:5]), ahead.fetch(x[0])]
        streams.finish()
        expected = [x[1], bits[2], x[3, 2:5], x[0]]
        assert all(map(torch.equal, found, expected))
        ahead.close()
    assert uploads == [0, 4]
