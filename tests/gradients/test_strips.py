"""Launches that native code has run go back by native code: nothing else may change with it."""

import gc
import random
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch

import penstock as ps
from penstock.autodiff import strip_way
from penstock.run.strips import library
from tests.strips import REASON, has_strips, in_strips, noted_strips

pytestmark = pytest.mark.skipif(not has_strips(), reason=REASON)

SECOND_TIME = "Trying to backward through the graph a second time"
COUNTS = [1, 2, 3, 1, 0, 4]


@pytest.fixture(autouse=True)
def strips() -> Iterator[list[Any]]:
    """At least one launch of every test is run by native code."""
    with in_strips(), noted_strips() as noted:
        yield noted
        assert noted


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()


def new_walk(w: torch.Tensor) -> ps.Function:
    """Each row is computed from the one below, and the input that all rows of an instance read."""

    @ps.function
    def walk(x, n):
        def inner():
            return torch.tanh(walk(x, n - 1) @ w) + x

        return ps.cond(n > 0, inner, lambda: (x @ w).sin())

    return walk


def plain_walk(x: torch.Tensor, n: int, w: torch.Tensor) -> torch.Tensor:
    made = (x @ w).sin()
    for _ in range(n):
        made = torch.tanh(made @ w) + x
    return made


def new_pair(w: torch.Tensor) -> ps.Function:
    """A block with two results, of which each needs saved values for itself."""

    @ps.function
    def pair(x):
        h = torch.tanh(x @ w)
        return h * h, torch.sin(h @ w)

    return pair


def new_triple(w: torch.Tensor) -> ps.Function:
    """A block whose three results have cotangents in some rows only, and not in the same ones."""

    @ps.function
    def triple(x, n):
        def inner():
            a, b, c = triple(x, n - 1)
            return torch.tanh(a * b), b @ w + c, c * a.sin()

        return ps.cond(n > 0, inner, lambda: (x.sin(), x.cos(), x @ w))

    return triple


def plain_triple(x: torch.Tensor, n: int, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b, c = x.sin(), x.cos(), x @ w
    for _ in range(n):
        a, b, c = torch.tanh(a * b), b @ w + c, c * a.sin()
    return a, b, c


Rows = Sequence[Sequence[torch.Tensor]]


def loss_of(rows: Rows, chosen: Sequence[tuple[int, int]]) -> torch.Tensor:
    """A loss of some results of some instances, each with a weight of its own."""
    return sum(((k + 2 * r + 1.5) * rows[r][k].sin()).sum() for r, k in chosen)


def gradients(loss: torch.Tensor, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Zeros where there is no gradient."""
    return torch.autograd.grad(
        loss, inputs, retain_graph=True, allow_unused=True, materialize_grads=True
    )


# ---- some results --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_any_results_of_any_instances_have_gradients_in_any_order(seed):
    draws, x, w = random.Random(seed), draw(6, 4), draw(4, 4, seed=1)
    triple = new_triple(w)
    expected = [plain_triple(*pair, w) for pair in zip(x, COUNTS, strict=True)]
    for _ in range(3):
        found = triple.map(x, COUNTS)
        for _ in range(2):
            places = [(r, k) for r in range(6) for k in range(3) if draws.random() < 0.4] or [
                (5, 0)
            ]
            torch.testing.assert_close(
                gradients(loss_of(found, places), (x, w)),
                gradients(loss_of(expected, places), (x, w)),
            )


def test_a_missing_cotangent_is_not_zero_times_infinity():
    x = torch.tensor([[0.0, 1.0, 2.0]] * 4, dtype=torch.float64, requires_grad=True)
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)

    @ps.function
    def roots(x):
        h = x * w
        return h.sqrt(), h.log(), h * 3

    expected = [((row * w).sqrt(), (row * w).log(), row * w * 3) for row in x]
    some = [(0, 2), (1, 2), (2, 2), (3, 2), (1, 0), (2, 1)]
    for _ in range(3):
        found = roots.map(x)
        for places in (some, some[:4], [*some[:4], (0, 0), (1, 0), (2, 0), (3, 0)]):
            torch.testing.assert_close(
                gradients(loss_of(found, places), (x, w)),
                gradients(loss_of(expected, places), (x, w)),
                equal_nan=True,
            )


def test_inputs_that_ask_for_gradients_may_lie_among_others():
    w, ys = draw(4, 4, seed=1), draw(6, 4, seed=2).detach()

    @ps.function
    def mixed(x, y, n):
        return ps.cond(n > 0, lambda: torch.tanh(mixed(x, y, n - 1) @ w) * y + x, lambda: x * y)

    def plain(x, y, n):
        made = x * y
        for _ in range(n):
            made = torch.tanh(made @ w) * y + x
        return made

    for turn in range(4):
        xs = [draw(4, seed=k).requires_grad_((k + turn) % 2 == 0) for k in range(6)]
        expected = [[plain(*row)] for row in zip(xs, ys, COUNTS, strict=True)]
        found = [[row] for row in mixed.map(xs, ys, COUNTS)]
        asking, places = [*xs[turn % 2 :: 2], w], [(r, 0) for r in range(6)]
        torch.testing.assert_close(
            gradients(loss_of(found, places), asking), gradients(loss_of(expected, places), asking)
        )


# ---- several passes ------------------------------------------------------------------------------


def test_a_result_whose_way_back_is_new_may_not_go_where_another_has_used_up_the_graph():
    x, w = draw(6, 4), draw(4, 4, seed=1)
    pair = new_pair(w)
    for _ in range(2):
        squares, sines = zip(*pair.map(x), strict=True)
        torch.stack(squares).square().sum().backward()
    with pytest.raises(RuntimeError, match=SECOND_TIME):
        torch.stack(sines).sum().backward()


def test_calls_that_live_at_once_go_back_in_any_order():
    x, y, w = draw(6, 4), draw(6, 4, seed=2), draw(4, 4, seed=1)
    walk = new_walk(w)
    for _ in range(2):
        first, second = walk.map(x, COUNTS), walk.map(y, COUNTS[::-1])
    third = walk.map(torch.stack(first), COUNTS)
    plain_first = [plain_walk(*pair, w) for pair in zip(x, COUNTS, strict=True)]
    plain_second = [plain_walk(*pair, w) for pair in zip(y, COUNTS[::-1], strict=True)]
    plain_third = [plain_walk(*pair, w) for pair in zip(plain_first, COUNTS, strict=True)]
    found, expected = [first, second, third], [plain_first, plain_second, plain_third]
    for place in [(0, 0), (1, 3), (2, 5), (0, 4), (2, 1), (1, 0), (0, 0)]:
        torch.testing.assert_close(
            gradients(loss_of(found, [place]), (x, y, w)),
            gradients(loss_of(expected, [place]), (x, y, w)),
        )


def test_gradients_of_gradients_are_right_before_and_after_others():
    x, w = draw(6, 4), draw(4, 4, seed=1)
    walk = new_walk(w)
    walk.map(x, COUNTS)

    def both(rows: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        loss = torch.stack(rows).square().sum()
        first = gradients(loss, (x, w))
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        return *first, *gradients(grad.sin().sum() + loss, (x, w)), *gradients(loss, (x, w))

    expected = [plain_walk(*pair, w) for pair in zip(x, COUNTS, strict=True)]
    torch.testing.assert_close(both(walk.map(x, COUNTS)), both(expected))


def test_a_weight_that_was_changed_since_is_torchs_error():
    x, w = draw(6, 4), draw(4, 4, seed=1)
    walk = new_walk(w)
    walk.map(x, COUNTS)
    loss = walk.map(x, COUNTS, out="stack").sum()
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_threads_train_the_same_function_at_once():
    w, wrong = draw(4, 4, seed=1), []
    walk = new_walk(w)

    def work(seed: int) -> None:
        x = draw(6, 4, seed=seed)
        plain = [[plain_walk(*pair, w)] for pair in zip(x, COUNTS, strict=True)]
        places = [(r, 0) for r in range(6)]
        expected = gradients(loss_of(plain, places), (x, w))
        for _ in range(10):
            found = gradients(loss_of([[row] for row in walk.map(x, COUNTS)], places), (x, w))
            if not all(map(torch.allclose, found, expected)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_weight_whose_data_was_replaced_by_less_is_not_read_beyond_its_end():
    x, w = draw(6, 4), draw(4, 4, seed=1)
    walk = new_walk(w)
    for _ in range(2):
        torch.autograd.grad(walk.map(x, COUNTS, out="stack").sum(), x)
    loss = walk.map(x, COUNTS, out="stack").sum()
    w.data = torch.zeros(2, 2, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.autograd.grad(loss, x)


# ---- types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_gradients_of_any_type_are_added(dtype):
    w, scale = draw(4, 4, seed=1, dtype=dtype), draw(6, 4, seed=2, dtype=dtype).detach()
    x = draw(6, 4, dtype=dtype)
    walk = new_walk(w)
    found = []
    for _ in range(3):
        out = walk.map(x, COUNTS, out="stack")
        found.append(torch.autograd.grad((out * scale).sum(), (x, w)))
    torch.testing.assert_close(found[1:], [found[0]] * 2)


def test_new_tensors_may_be_on_another_device():
    x, w = draw(200, 4), draw(4, 4, seed=1)
    walk, counts = new_walk(w), torch.arange(200) % 4
    expected = torch.stack([plain_walk(*pair, w) for pair in zip(x, counts.tolist(), strict=True)])
    walk.map(x, counts)
    with torch.device("meta"):
        walk.map(x, counts)
        found = walk.map(x, counts)
    places = [(r, 0) for r in range(200)]
    torch.testing.assert_close(
        gradients(loss_of([[row] for row in found], places), (x, w)),
        gradients(loss_of([[row] for row in expected], places), (x, w)),
    )


# ---- memory --------------------------------------------------------------------------------------


def test_what_was_saved_is_let_go_though_some_launches_save_nothing():
    x, w = draw(6, 4), draw(4, 4, seed=1)

    @ps.function
    def climb(x, n):
        return ps.cond(n > 0, lambda: climb(x, n - 1) + x, lambda: torch.tanh(x @ w))

    climb.map(x, COUNTS)
    with noted_strips() as noted:
        loss = climb.map(x, COUNTS, out="stack").square().sum()
    assert noted
    assert all(batch.saved is not None for _, batch, _ in noted)
    loss.backward()
    assert all(batch.saved is None for _, batch, _ in noted)


def test_what_was_saved_is_let_go_though_one_row_went_after_the_other():
    x, w = draw(6, 4), draw(4, 4, seed=1)
    walk = new_walk(w)
    walk.map(x, COUNTS)
    with noted_strips() as noted:
        rows = walk.map(x, COUNTS)
    for row in rows:
        row.square().sum().backward()
    expected = sum(plain_walk(*pair, w).square().sum() for pair in zip(x, COUNTS, strict=True))
    torch.testing.assert_close((x.grad, w.grad), torch.autograd.grad(expected, (x, w)))
    assert noted
    assert all(batch.saved is None for _, batch, _ in noted)


def test_what_a_pass_reads_is_there_until_it_is_over_though_another_lets_go_of_it(strips):
    x, w = draw(6, 4), draw(4, 4, seed=1)
    walk = new_walk(w)
    walk.map(x, COUNTS)
    loss = walk.map(x, COUNTS, out="stack").sum()
    batch, found = strips[-1][1], library.library()
    assert found is not None
    saved, backward, others = weakref.ref(batch.saved), found.backward, [loss.backward]
    left: list[bool] = []

    def interrupted(*arguments: Any) -> Any:
        if others:
            other = threading.Thread(target=others.pop())
            other.start()
            other.join()
            left.append(batch.saved is None and saved() is not None)
        return backward(*arguments)

    with patch.object(found, "backward", interrupted), pytest.raises(RuntimeError, match="second"):
        torch.autograd.grad(loss, x, retain_graph=True)
    assert left == [True]
    assert saved() is None


def test_nothing_of_a_run_is_left_once_its_outputs_are_dropped(strips):
    x, w = draw(6, 4), draw(4, 4, seed=1)
    walk = new_walk(w)
    walk.map(x, COUNTS)
    for goes_back in (True, False):
        loss = walk.map(x, COUNTS, out="stack").sum()
        left = [weakref.ref(item) for run, batch, _ in strips for item in (run, batch)]
        strips.clear()
        assert any(ref() is not None for ref in left)
        gc.disable()
        try:
            if goes_back:
                loss.backward()
            del loss
            assert [ref() for ref in left if ref() is not None] == []
        finally:
            gc.enable()
    walk.map(x, COUNTS)


def test_two_numbers_with_one_gradient_get_it_in_memory_of_their_own():
    first, second = (torch.ones((), dtype=torch.float64, requires_grad=True) for _ in range(2))

    @ps.function
    def walk(x, n):
        return ps.cond(n > 0, lambda: torch.tanh(walk(x, n - 1)) + first + second, lambda: x)

    x, counts = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4), [2, 1, 3]
    for _ in range(3):
        loss = torch.stack(walk.map(x, counts)).square().sum()
        found = torch.autograd.grad(loss, (first, second))
    rows = []
    for row, count in zip(x, counts, strict=True):
        made = row
        for _ in range(count):
            made = torch.tanh(made) + first + second
        rows.append(made)
    expected = torch.autograd.grad(torch.stack(rows).square().sum(), (first, second))
    torch.testing.assert_close(found, expected)
    assert found[0].data_ptr() != found[1].data_ptr()


@pytest.mark.parametrize("rows", [1, 3, 10_000])
def test_factors_wait_for_room_and_for_no_more(rows):
    table, w, bias = draw(5, 4), draw(4, 4, seed=1), draw(4, seed=2)

    @ps.function
    def walk(word, n):
        def inner():
            return torch.tanh(torch.nn.functional.linear(walk(word, n - 1), w, bias))

        return ps.cond(n > 0, inner, lambda: torch.nn.functional.embedding(word, table).sin())

    words, counts = torch.arange(12) % 5, [k % 6 for k in range(12)]
    sizes: list[int] = []
    empty = strip_way.empty_on_host

    def note(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        sizes.append(*shape)
        return empty(shape, dtype)

    with (
        patch.object(strip_way, "WAITING_ROWS", rows),
        patch.object(strip_way, "empty_on_host", note),
    ):
        for _ in range(2):
            sizes.clear()
            found = walk.map(words, counts, out="stack")
            made = torch.autograd.grad(found.square().sum(), (table, w, bias))
    rows_found = []
    for word, n in zip(words, counts, strict=True):
        row = table[word].sin()
        for _ in range(n):
            row = torch.tanh(torch.nn.functional.linear(row, w, bias))
        rows_found.append(row)
    loss = torch.stack(rows_found).square().sum()
    torch.testing.assert_close(made, torch.autograd.grad(loss, (table, w, bias)))
    # One factor of a leaf and its number, two of each of the 30 calls inside: 4 numbers of 64 bits.
    piece, aligned = 3, 64
    expected = {rows: (rows * 40, 2 * rows * 32) for rows in (piece, 12, 30)}
    leaves, inner = (12, 30) if rows == 10_000 else (piece, piece)
    assert sum(sizes) < expected[leaves][0] + expected[inner][1] + 4 * aligned
    assert sum(sizes) >= expected[leaves][0] + expected[inner][1]


@pytest.mark.parametrize("rows", [1, 64, 512])
def test_launches_of_many_rows_run_in_pieces(rows):
    """All results of some rows have cotangents, and one of others."""
    x, w = draw(700, 4), draw(4, 4, seed=1)
    counts = [k % 3 for k in range(700)]
    triple = new_triple(w)
    with patch.object(library, "PIECE_ROWS", rows):
        triple.map(x, counts)
        found = triple.map(x, counts)
        expected = [plain_triple(row, n, w) for row, n in zip(x, counts, strict=True)]
        torch.testing.assert_close([list(row) for row in found], [list(row) for row in expected])
        chosen = [(r, k) for r in range(700) for k in range(3) if k == 0 or r % 4]
        torch.testing.assert_close(
            gradients(loss_of(found, chosen), (x, w)), gradients(loss_of(expected, chosen), (x, w))
        )
