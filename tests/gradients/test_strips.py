"""Launches that native code has run go back by native code: nothing else may change with it."""

from collections.abc import Iterator

import pytest
import torch

import penstock as ps
from tests.strips import REASON, has_strips, in_strips, noted_strips

pytestmark = pytest.mark.skipif(not has_strips(), reason=REASON)

SECOND_TIME = "Trying to backward through the graph a second time"
COUNTS = [1, 2, 3, 1, 0, 4]


@pytest.fixture(autouse=True)
def strips() -> Iterator[None]:
    """At least one launch of every test is run by native code."""
    with in_strips(), noted_strips() as noted:
        yield
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


# ---- several passes ------------------------------------------------------------------------------


def test_a_result_whose_way_back_is_new_may_not_go_where_another_has_used_up_the_graph():
    x, w = draw(6, 4), draw(4, 4, seed=1)
    pair = new_pair(w)
    for _ in range(2):
        squares, sines = zip(*pair.map(x), strict=True)
        torch.stack(squares).square().sum().backward()
    with pytest.raises(RuntimeError, match=SECOND_TIME):
        torch.stack(sines).sum().backward()


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
