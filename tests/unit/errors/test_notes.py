"""Exceptions that are not ours surface as themselves, with notes on where they come from."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import penstock as ps
from tests.unit.errors.messages import blames_a_marked_line, raised_by, text_of

embedding = nn.Embedding(4, 2)
table = torch.arange(3.0)


@ps.function
def embed(token):
    scaled = token * 2
    return embedding(scaled).sum() + 1  # blamed


def test_an_exception_in_a_launch_names_block_instance_and_line() -> None:
    error = raised_by(lambda: embed.map([0, 1, 5, 9]))
    assert type(error) is IndexError
    (note,) = error.__notes__
    assert note.startswith("in block embed:")
    assert ", for instance 2, at " in note
    assert blames_a_marked_line(error)


def test_a_single_call_needs_no_instance() -> None:
    error = raised_by(lambda: embed(5))
    assert "instance" not in error.__notes__[0]
    assert blames_a_marked_line(error)


def test_an_instance_inside_a_recursion_is_found() -> None:
    @ps.function
    def total(tokens, i):
        return ps.cond(
            i < 0,
            lambda: torch.zeros(2),
            lambda: total(tokens, i - 1) + embedding(tokens[i]),  # blamed
        )

    good, bad = torch.tensor([0, 1, 2]), torch.tensor([0, 7, 2])
    error = raised_by(lambda: total.map([good, good, bad], [2, 2, 2]))
    assert ", for instance 2, at " in error.__notes__[0]
    assert blames_a_marked_line(error)


def test_elements_of_all_instances_in_one_launch_are_told_apart() -> None:
    @ps.function
    def total(tokens):
        return embedding(tokens).sum(0)  # blamed

    columns = [torch.tensor([0, 1, 2]), torch.tensor([3]), torch.tensor([1, 7])]
    error = raised_by(lambda: total.map(columns))
    assert type(error) is IndexError
    assert ", for instance 2, at " in error.__notes__[0]


def test_a_value_computed_once_for_all_names_its_line() -> None:
    which = torch.tensor([7])

    @ps.function
    def shift(x):
        return x + table.index_select(0, which)  # blamed

    error = raised_by(lambda: shift.map([1.0, 2.0]))
    assert blames_a_marked_line(error)


def test_an_exception_of_user_code_has_the_line_and_the_instance() -> None:
    def check(x):
        raise ValueError("not mine")

    @ps.function
    def inner(x):
        return check(x)  # blamed

    @ps.function
    def outer(x):
        return inner(x + 1)  # blamed

    error = raised_by(lambda: outer.map([1.0, 2.0]))
    assert blames_a_marked_line(error)
    assert text_of(error).splitlines() == [
        "ValueError: not mine",
        "while tracing inner at test_notes.py, in inner",
        "while tracing outer at test_notes.py, in outer",
        "in instance 0 of outer.map",
    ]


def test_an_instance_whose_sizes_do_not_fit_is_named() -> None:
    @ps.function
    def add(x, y):
        return x + y  # blamed

    two, three, four = torch.ones(2), torch.ones(3), torch.ones(4)
    error = raised_by(lambda: add.map([two, three, two], [two, four, two]))
    assert type(error) is RuntimeError
    assert error.__notes__[-1] == "in instance 1 of add.map"
    assert blames_a_marked_line(error)


def test_matrices_that_cannot_be_factored_or_inverted_raise_as_in_torch() -> None:
    @ps.function
    def factor(matrix):
        return torch.linalg.cholesky(matrix)  # blamed

    @ps.function
    def solve(matrix):
        return torch.linalg.inv(matrix) @ torch.linalg.solve(matrix, torch.ones(2))  # blamed

    good, negative, singular = torch.eye(2), -torch.eye(2), torch.zeros(2, 2)
    for call in (
        lambda: factor.map([good, negative]),
        lambda: solve.map([good, singular]),
        lambda: factor.map(torch.stack([good, negative]).requires_grad_()),
    ):
        error = raised_by(call)
        assert type(error) is torch.linalg.LinAlgError
        assert ", for instance 1, at " in error.__notes__[0]
        assert blames_a_marked_line(error)
    assert type(raised_by(lambda: factor(negative))) is torch.linalg.LinAlgError
    error = raised_by(lambda: ps.map(torch.linalg.inv, [good, singular]))
    assert type(error) is torch.linalg.LinAlgError


@pytest.mark.parametrize("lengths", [(), (2, 3)], ids=["plain", "padded"])
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("loss", [functional.cross_entropy, functional.nll_loss])
def test_a_class_that_is_none_is_the_error_of_torch(loss, needs_grad, lengths) -> None:
    """The batched form gathers, which raises a RuntimeError for it."""
    rows = [torch.randn(*(lengths[n : n + 1]), 5).requires_grad_(needs_grad) for n in range(2)]
    wanted = [torch.zeros(lengths[n : n + 1], dtype=torch.int64) for n in range(2)]
    wanted[1].fill_(7)
    with pytest.raises(IndexError) as eager:
        loss(rows[1], wanted[1])
    with pytest.raises(IndexError) as found:
        ps.function(lambda x, y: loss(x, y), name="model").map(rows, wanted)
    assert type(found.value) is type(eager.value)
    assert str(found.value) == str(eager.value) == "Target 7 is out of bounds."
    assert any("for instance 1, at " in note for note in found.value.__notes__)
