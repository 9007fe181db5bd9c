"""Values that all instances have lie in one chunk with computed ones, and stay the caller's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import penstock as ps
from penstock.plan.schedule import Kind
from penstock.run import arenas as arenas_module
from penstock.run.arenas import Arena

TOKENS, COUNTS = [1, 2, 3, 4], [2, 0, 1, 0]


def program(zero: Tensor) -> ps.Function:
    """Rows that come from a word meet rows that start from one given value."""
    table = torch.randn(5, zero.shape[0], generator=torch.Generator().manual_seed(0))

    @ps.function
    def last(token, n):
        start = ps.cond(n > 0, lambda: table[token].sin(), lambda: zero)
        return (start * 2).tanh() + start

    return last


def expected(last: ps.Function) -> Tensor:
    return torch.stack([last(token, n) for token, n in zip(TOKENS, COUNTS, strict=True)])


@pytest.fixture
def from_many(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many slots were gathered from several chunks, each time that was done."""
    found: list[int] = []
    pick = Arena._picks_from_many

    def look(arena: Arena, slots, first: int, last: int) -> Tensor:
        found.append(len(slots))
        return pick(arena, slots, first, last)

    monkeypatch.setattr(Arena, "_picks_from_many", look)
    return found


def test_a_launch_that_reads_given_and_computed_values_reads_one_chunk(from_many) -> None:
    last = program(torch.zeros(3))
    for _ in range(4):  # the plan is known from the second time on
        found = last.map(TOKENS, COUNTS, out="stack")
    assert not from_many
    torch.testing.assert_close(found, expected(last))


def test_many_values_stay_where_they_are(from_many, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas_module, "FEW", 2)
    last = program(torch.ones(3))
    for _ in range(4):
        found = last.map(TOKENS, COUNTS, out="stack")
    assert from_many
    torch.testing.assert_close(found, expected(last))


def test_the_given_value_is_neither_written_nor_given_away() -> None:
    zero = torch.zeros(3)
    first = ps.function(lambda n: ps.cond(n > 0, lambda: zero + n, lambda: zero))
    found = first.map([0, 1], out="stack")
    found.add_(5)
    assert zero.tolist() == [0, 0, 0]
    zero.add_(1)
    torch.testing.assert_close(first.map([0, 1], out="stack")[:, 0], torch.tensor([1.0, 2.0]))
    assert found[:, 0].tolist() == [5, 6]


def test_values_of_instances_stay_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arena, "grow_over_given", lambda arena, count: pytest.fail("moved"))
    double = ps.function(lambda x: x.sin() * 2)
    double.map(torch.ones(2, 3))


def test_an_arena_grows_over_values_in_several_chunks() -> None:
    arena = Arena(Kind("float32", (2,), "cpu"))
    given = [torch.ones(1, 2), torch.full((1, 2), 2.0).T.expand(2, 2)[:1]]
    for start, values in enumerate(given):
        arena.install(start, values)
    arena.grow_over_given(3)
    assert [len(chunk) for chunk in arena.chunks] == [5]
    assert arena.starts == [0]
    assert not arena.is_given(0)
    assert arena.chunks[0][:2].tolist() == [[1, 1], [2, 2]]
