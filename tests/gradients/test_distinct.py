"""Rows that read the same whole numbers are computed once, and their gradients are as without."""

from collections.abc import Iterator
from contextlib import nullcontext
from unittest.mock import patch

import pytest
import torch

import penstock as ps
from penstock.autodiff.call import call_behind
from penstock.autodiff.page import Page
from penstock.errors import NanError
from penstock.run import distinct
from penstock.run.distinct import distinct_always
from penstock.run.engine import Run
from tests.fused import fused_without_compiler

TOKENS = [3, 1, 3, 0, 1, 3, 4, 0]


@pytest.fixture(autouse=True, params=["plain", "whole"])
def shared(request) -> Iterator[None]:
    with distinct_always(), fused_without_compiler() if request.param == "whole" else nullcontext():
        yield


def table(seed=0):
    torch.manual_seed(seed)
    return torch.randn(5, 3, dtype=torch.float64, requires_grad=True)


def weight():
    return torch.randn(2, 3, dtype=torch.float64, requires_grad=True)


def counted():
    """Says for how many rows each launch was run."""
    found = []
    find = distinct.find_distinct

    def look(run, step):
        rows = find(run, step)
        found.append((step.launch.rows, step.launch.rows if rows is None else rows.count))
        return rows

    return found, patch("penstock.autodiff.tape.find_distinct", look)


def test_a_launch_has_one_row_for_each_number_and_gradients_are_those_of_all_rows():
    words, w = table(), weight()

    @ps.function
    def leaf(token):
        return torch.tanh(w @ words[token])

    scale = torch.randn(len(TOKENS), 2, dtype=torch.float64)
    plain = torch.autograd.grad(
        (torch.stack([torch.tanh(w @ words[t]) for t in TOKENS]) * scale).sum(), (words, w)
    )
    found, look = counted()
    with look:
        for _ in range(4):  # later calls find the plan and the way back
            made = leaf.map(TOKENS, out="stack")
            torch.testing.assert_close(torch.autograd.grad((made * scale).sum(), (words, w)), plain)
    assert found == [(8, 4)] * 4
    rows = [leaf(t) for t in TOKENS]
    torch.testing.assert_close(torch.stack(rows), made)


def test_two_numbers_of_a_row_count_together():
    words, w = table(), weight()

    @ps.function
    def pair(one, other):
        return w @ (words[one] * words[other].exp())

    others = [1, 2, 1, 2, 2, 1, 0, 2]
    found, look = counted()
    with look:
        made = pair.map(TOKENS, others, out="stack")
    assert found == [(8, len(set(zip(TOKENS, others, strict=True))))]
    plain = torch.stack([w @ (words[a] * words[b].exp()) for a, b in zip(TOKENS, others)])
    torch.testing.assert_close(made, plain)
    scale = torch.randn_like(plain)
    ours, theirs = (torch.autograd.grad((x * scale).sum(), (words, w)) for x in (made, plain))
    torch.testing.assert_close(ours, theirs)


def test_drawn_numbers_are_those_of_each_row():
    words, w = table(), weight()

    @ps.function
    def leaf(token):
        return torch.nn.functional.dropout(w @ words[token])

    def drawn(calls):
        torch.manual_seed(3)
        rows = calls()
        return rows, torch.autograd.grad(sum(row.sum() for row in rows), (words, w))

    with patch.object(Run, "shares_rows", False):
        expected = drawn(lambda: leaf.map(TOKENS))
    torch.testing.assert_close(drawn(lambda: leaf.map(TOKENS)), expected)


def test_numbers_that_no_cotangent_reaches_spoil_nothing():
    words = torch.tensor([[4.0], [0.0], [9.0]], requires_grad=True)

    @ps.function
    def root(token):
        return words[token].sqrt() * 2, words[token] * 3

    rows = root.map([0, 1, 0, 2, 1])
    (grad,) = torch.autograd.grad(rows[0][0] + rows[2][0] + rows[3][1] + rows[4][1], words)
    torch.testing.assert_close(grad, torch.tensor([[1.0], [3.0], [3.0]]))


def test_rows_go_backward_one_after_the_other_and_a_second_time_where_that_is_asked_for():
    words, w = table(), weight()

    @ps.function
    def leaf(token):
        return torch.tanh(w @ words[token])

    losses = [row.sum() for row in leaf.map(TOKENS)]
    whole = torch.autograd.grad(sum(losses), (words, w), retain_graph=True)
    apart = [torch.autograd.grad(loss, (words, w)) for loss in losses]
    torch.testing.assert_close(tuple(map(sum, zip(*apart, strict=True))), whole)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(losses[0], w)


def test_gradients_have_gradients():
    words, w = table(), weight()

    @ps.function
    def leaf(token):
        return torch.tanh(w @ words[token]).sum()

    def twice(rows):
        (first,) = torch.autograd.grad(sum(rows), w, create_graph=True)
        return torch.autograd.grad((first**2).sum(), (words, w))

    plain = twice([torch.tanh(w @ words[t]).sum() for t in TOKENS])
    torch.testing.assert_close(twice(leaf.map(TOKENS)), plain)


def test_one_plan_serves_batches_with_and_without_equal_rows():
    words, w = table(), weight()

    @ps.function
    def encode(tokens):
        total = w.new_zeros(2)
        for token in tokens:
            total = torch.tanh(total + w @ words[token])
        return total

    alike, different = (
        torch.tensor([[2, 2], [1, 2], [2, 1]]),
        torch.tensor([[0, 1], [4, 3], [2, 0]]),
    )
    with patch.object(distinct, "LEAST_ROWS", 1):
        token = distinct._is_always.set(False)
        for tokens in [alike, different] * 6:
            plain = []
            for row in tokens:
                total = w.new_zeros(2)
                for t in row:
                    total = torch.tanh(total + w @ words[t])
                plain.append(total)
            made = encode.map(tokens, out="stack")
            scale = torch.randn_like(made)
            torch.testing.assert_close(made, torch.stack(plain))
            ours, theirs = (
                torch.autograd.grad((x * scale).sum(), (words, w))
                for x in (made, torch.stack(plain))
            )
            torch.testing.assert_close(ours, theirs)
        distinct._is_always.reset(token)


def test_words_of_sequences_of_different_lengths_are_shared():
    words, w = table(), weight()

    @ps.function
    def mean(tokens):
        return (words[tokens] @ w.T).tanh().mean(0)

    batch = [torch.tensor(TOKENS[:n]) for n in (3, 8, 1, 5)]
    made = torch.stack(mean.map(batch))
    plain = torch.stack([(words[t] @ w.T).tanh().mean(0) for t in batch])
    torch.testing.assert_close(made, plain)
    scale = torch.randn_like(plain)
    ours, theirs = (torch.autograd.grad((x * scale).sum(), (words, w)) for x in (made, plain))
    torch.testing.assert_close(ours, theirs)


def test_a_number_out_of_range_is_that_of_its_instance():
    words = table()

    @ps.function
    def leaf(token):
        return torch.nn.functional.embedding(token, words).tanh()

    with pytest.raises(IndexError) as caught:
        leaf.map([1, 2, 7, 2])
    assert any("instance 2" in note for note in caught.value.__notes__)


def test_a_nan_of_backward_is_that_of_its_instance():
    words = torch.tensor([[4.0], [0.0]], requires_grad=True)

    @ps.function
    def leaf(token):
        x = torch.nn.functional.embedding(token, words)
        return x.sqrt() * 0

    rows = leaf.map([0, 0, 1, 0])
    with torch.autograd.set_detect_anomaly(True), pytest.raises(NanError, match="instance  2"):
        torch.autograd.grad(sum(rows), words)


def test_less_is_saved_for_backward():
    words, w = table(), weight()

    @ps.function
    def leaf(token):
        return torch.tanh(w @ words[token])

    def rows_saved(made):
        entries = call_behind(made).run.tape.entries
        pages = [entry for entry in entries if isinstance(entry, Page)]
        return {max(values.shape) for page in pages for values in page.saved}

    assert rows_saved(leaf.map(TOKENS, out="stack")) == {4}
    with patch.object(Run, "shares_rows", False):
        assert rows_saved(leaf.map(TOKENS, out="stack")) == {8}


def test_rows_are_shared_where_memory_is_bounded_but_not_where_they_are_all_different():
    words, w = table(), weight()

    @ps.function
    def leaf(token):
        return torch.tanh(w @ words[token])

    found, look = counted()
    with look, ps.memory("recompute", budget=600):
        leaf.map(TOKENS)
    token = distinct._is_always.set(False)
    with look, patch.object(distinct, "LEAST_ROWS", 1):
        leaf.map([0, 1, 2, 3])
    distinct._is_always.reset(token)
    assert found == [(8, 4), (4, 4)]


def test_rows_that_print_are_all_run(capsys):
    vectors = table()
    program = ps.function(lambda i: ps.print(vectors[i], "row") * 2)
    program.map(TOKENS)
    assert capsys.readouterr().out.count("row") == len(TOKENS)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_whole_numbers_of_which_torch_selects_no_rows_are_taken_row_by_row(dtype):
    words, w = table(), weight()
    read = ps.function(lambda token: w @ words[token.long()])
    give = ps.function(lambda token: (w @ words[token], token.to(dtype)))
    plain = torch.stack([w @ words[t] for t in TOKENS])
    for recording in (True, False):
        with torch.set_grad_enabled(recording):
            torch.testing.assert_close(read.map(torch.tensor(TOKENS).to(dtype), out="stack"), plain)
            rows, tokens = give.map(torch.tensor(TOKENS), out="stack")
        torch.testing.assert_close(rows, plain)
        assert tokens.tolist() == TOKENS
        assert tokens.dtype == dtype
