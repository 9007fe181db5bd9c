"""Native code computes rows that read the same whole numbers once: nothing else may change."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch

import penstock as ps
from penstock.run import distinct
from penstock.run.engine import Run
from penstock.run.strips.words import DISTINCT, ROWS
from tests.strips import REASON, has_strips, in_strips, noted_strips

pytestmark = pytest.mark.skipif(not has_strips(), reason=REASON)

TOKENS = [3, 1, 3, 0, 1, 3, 4, 0]


@pytest.fixture(autouse=True, params=[False, True], ids=["fresh", "kept"])
def strips(request) -> Iterator[list[Any]]:
    with (
        in_strips(keeps_plans=request.param),
        patch.multiple(distinct, LEAST_ROWS=1, MOST_SHARE=1.0),
        noted_strips() as noted,
    ):
        yield noted
        assert noted


def table() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(5, 3, dtype=torch.float64, requires_grad=True)


def weight() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(3, 2, dtype=torch.float64, requires_grad=True)


def computed(strips: Sequence[Any]) -> list[tuple[int, int]]:
    """For each launch the rows that it had, and how many distinct ones were computed."""
    batch = strips[-1][1]
    return [tuple(row) for row in batch.launches[: batch.count, [ROWS, DISTINCT]].tolist()]


Rows = Sequence[Sequence[torch.Tensor]]


def check(
    call: Callable[[], Rows], plain: Rows, inputs: Sequence[torch.Tensor], places: Any
) -> None:
    """Values are those of plain Python, and gradients from some of the results."""
    for _ in range(4):
        found = call()
        torch.testing.assert_close([[*row] for row in found], [[*row] for row in plain])
        ours, theirs = (
            torch.autograd.grad(
                sum(((1.5 + r + 2 * k) * rows[r][k].sin()).sum() for r, k in places),
                inputs,
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
            for rows in (found, plain)
        )
        torch.testing.assert_close(ours, theirs)


ALL = [(r, 0) for r in range(len(TOKENS))]


@pytest.mark.parametrize("places", [ALL, ALL[:3], ALL[2:3], [*ALL[::2]]], ids=len)
def test_gradients_are_those_of_all_rows(strips, places):
    words, w = table(), weight()

    @ps.function
    def leaf(token):
        return torch.tanh(words[token] @ w)

    plain = [[torch.tanh(words[t] @ w)] for t in TOKENS]
    check(lambda: [[row] for row in leaf.map(TOKENS)], plain, (words, w), places)
    assert computed(strips) == [(8, 4)]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8], ids=str)
def test_numbers_of_any_type_are_compared(strips, dtype):
    words, w = table(), weight()

    @ps.function
    def leaf(one, other):
        return torch.tanh((words[one.long()] * words[other.long()].exp()) @ w)

    ones, others = torch.tensor(TOKENS), torch.tensor([1, 2, 1, 2, 2, 1, 0, 2])
    plain = [[torch.tanh((words[a] * words[b].exp()) @ w)] for a, b in zip(ones, others)]
    columns = ones.to(dtype), others.to(dtype)
    check(lambda: [[row] for row in leaf.map(*columns)], plain, (words, w), ALL)
    assert computed(strips) == [(8, len(set(zip(TOKENS, others.tolist(), strict=True))))]


def test_two_numbers_of_a_row_count_together(strips):
    words, w = table(), weight()
    others = [1, 2, 1, 2, 2, 1, 0, 2]

    @ps.function
    def pair(one, other):
        return (words[one] * words[other].exp()) @ w

    plain = [[(words[a] * words[b].exp()) @ w] for a, b in zip(TOKENS, others)]
    check(lambda: [[row] for row in pair.map(TOKENS, others)], plain, (words, w), ALL)
    assert computed(strips) == [(8, len(set(zip(TOKENS, others, strict=True))))]


def test_results_that_only_some_of_the_same_rows_have_cotangents_of(strips):
    words, w = table(), weight()

    @ps.function
    def both(token):
        h = words[token] @ w
        return torch.tanh(h), h.exp(), h * 3

    def plain_both(token):
        h = words[token] @ w
        return torch.tanh(h), h.exp(), h * 3

    plain = [plain_both(t) for t in TOKENS]
    for places in ([(0, 0), (2, 1), (5, 2)], [(1, 0), (4, 0), (3, 1), (6, 2)], [(6, 2)]):
        check(lambda: both.map(TOKENS), plain, (words, w), places)


def test_leaves_of_a_recursion_share_rows_and_what_is_inside_does_not(strips):
    words, w = table(), torch.randn(3, 3, dtype=torch.float64, requires_grad=True)

    @ps.function
    def walk(token, n):
        return ps.cond(
            n > 0, lambda: torch.tanh(walk(token, n - 1) @ w), lambda: torch.sin(words[token] @ w)
        )

    def plain_walk(token, n):
        made = torch.sin(words[token] @ w)
        for _ in range(n):
            made = torch.tanh(made @ w)
        return made

    counts = [0, 1, 2, 1, 3, 0, 1, 2]
    plain = [[plain_walk(t, n)] for t, n in zip(TOKENS, counts)]
    check(lambda: [[row] for row in walk.map(TOKENS, counts)], plain, (words, w), ALL)
    assert computed(strips)[0] == (8, 4)
    assert {kinds for _, kinds in computed(strips)[1:]} == {0}


def test_rows_go_backward_one_after_the_other_and_a_second_time_where_that_is_asked_for(strips):
    words, w = table(), weight()

    @ps.function
    def leaf(token):
        return torch.tanh(words[token] @ w)

    leaf.map(TOKENS)
    losses = [row.sum() for row in leaf.map(TOKENS)]
    whole = torch.autograd.grad(sum(losses), (words, w), retain_graph=True)
    apart = [torch.autograd.grad(loss, (words, w)) for loss in losses]
    torch.testing.assert_close(tuple(map(sum, zip(*apart, strict=True))), whole)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(losses[0], w)


@pytest.mark.parametrize("order", [[2, 0, 5], [5, 2, 0], [1, 4, 1]], ids=str)
def test_each_of_the_rows_that_are_the_same_goes_back_once(strips, order):
    """Rows 0, 2 and 5 read the same number, and so do 1 and 4."""
    words, w = table(), weight()

    @ps.function
    def leaf(token):
        return torch.tanh(words[token] @ w)

    torch.autograd.grad(sum(row.sum() for row in leaf.map(TOKENS)), w)
    rows, gone = leaf.map(TOKENS), set()
    for number in order:
        if number in gone:
            with pytest.raises(RuntimeError, match="a second time"):
                torch.autograd.grad(rows[number].sum(), (words, w))
            continue
        plain = torch.tanh(words[TOKENS[number]] @ w).sum()
        found = torch.autograd.grad(rows[number].sum(), (words, w))
        torch.testing.assert_close(found, torch.autograd.grad(plain, (words, w)))
        gone.add(number)
    rest = [number for number in range(len(TOKENS)) if number not in gone]
    plain = sum(torch.tanh(words[TOKENS[number]] @ w).sum() for number in rest)
    found = torch.autograd.grad(sum(rows[number].sum() for number in rest), (words, w))
    torch.testing.assert_close(found, torch.autograd.grad(plain, (words, w)))


def test_rows_whose_like_have_gone_back_may_still_do_so(strips):
    """Of each kind one row goes back first, so that native code could run all kinds."""
    words, w = table(), weight()

    @ps.function
    def leaf(token):
        return torch.tanh(words[token] @ w)

    torch.autograd.grad(sum(row.sum() for row in leaf.map(TOKENS)), w)
    rows, first = leaf.map(TOKENS), [2, 4, 7, 6]
    assert {TOKENS[number] for number in first} == set(TOKENS)
    for numbers in (first, [number for number in range(len(TOKENS)) if number not in first]):
        plain = sum(torch.tanh(words[TOKENS[number]] @ w).sum() for number in numbers)
        found = torch.autograd.grad(sum(rows[number].sum() for number in numbers), (words, w))
        torch.testing.assert_close(found, torch.autograd.grad(plain, (words, w)))
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(rows[0].sum(), w)


def test_gradients_have_gradients(strips):
    words, w = table(), weight()

    @ps.function
    def leaf(token):
        return torch.tanh(words[token] @ w).sum()

    def twice(rows):
        (first,) = torch.autograd.grad(sum(rows), w, create_graph=True)
        return torch.autograd.grad((first**2).sum(), (words, w))

    plain = twice([torch.tanh(words[t] @ w).sum() for t in TOKENS])
    for _ in range(3):
        torch.testing.assert_close(twice(leaf.map(TOKENS)), plain)


def test_without_gradients_rows_are_shared_too(strips):
    words, w = table(), weight()
    leaf = ps.function(lambda token: torch.tanh(words[token] @ w))
    plain = torch.stack([torch.tanh(words[t] @ w) for t in TOKENS])
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(leaf.map(TOKENS, out="stack"), plain)
    assert computed(strips) == [(8, 4)]


def test_nothing_is_shared_where_too_many_rows_differ_or_nobody_may(strips):
    words, w = table(), weight()
    leaf = ps.function(lambda token: torch.tanh(words[token] @ w))
    leaf.map(TOKENS)
    with patch.object(distinct, "MOST_SHARE", 0.4):
        leaf.map(TOKENS)
    assert computed(strips) == [(8, 0)]
    with patch.object(Run, "shares_rows", False):
        leaf.map(TOKENS)
    assert computed(strips) == [(8, 0)]
    leaf.map(TOKENS)
    assert computed(strips) == [(8, 4)]


def test_a_type_that_was_changed_since_is_torchs_error(strips):
    words, w = table(), weight()
    leaf = ps.function(lambda token: torch.tanh(words[token] @ w).exp())
    for _ in range(3):
        torch.autograd.grad(leaf.map(TOKENS, out="stack").sum(), (words, w))
    loss = leaf.map(TOKENS, out="stack").sum()
    w.data = w.data.float()
    with pytest.raises(RuntimeError, match="dtype"):
        loss.backward()
