"""`f.collate`: batches that are bound and planned before they are run."""

from __future__ import annotations

import io
import pickle
from copy import deepcopy
from dataclasses import dataclass
from unittest.mock import patch

import pytest
import torch

import penstock as ps
from penstock.api import collate
from penstock.errors import ArgumentError
from penstock.plan.limits import limits
from penstock.plan.machine import Machine
from penstock.plan.planners import planning
from penstock.run.inputs import Pieces
from penstock.run.padding.block import PaddedBlock

#: Loops over scalars are part of what is planned here.
pytestmark = pytest.mark.usefixtures("interpreted_loops")


@dataclass
class Pair:
    """A structured argument with leaves of every kind."""

    words: torch.Tensor
    weight: torch.Tensor
    count: int


def total(pair, scale):
    i, found = torch.tensor(0), pair.weight * 0
    while i < pair.count:
        found = found + pair.words[i] * pair.weight * scale
        i = i + 1
    return found


def examples():
    torch.manual_seed(0)
    lengths = [3, 1, 4, 2]
    return [(Pair(torch.randn(n, 2), torch.randn(2), n), 0.5 * n) for n in lengths]


def columns_of(rows):
    return [list(column) for column in zip(*rows, strict=True)]


def refuse(*args):
    raise AssertionError("planned")


def without_planning():
    return patch.object(Machine, "run", refuse)


def test_pieces_are_a_sequence_of_parts():
    pieces = Pieces(torch.arange(6.0), [3, 0, 1, 2])
    assert [part.tolist() for part in pieces] == [[0, 1, 2], [], [3], [4, 5]]
    assert len(pieces) == 4
    assert pieces[-1].tolist() == [4, 5]
    assert [part.tolist() for part in pieces[2:]] == [[3], [4, 5]]


def test_words_of_a_collated_batch_are_not_cut_apart(monkeypatch):
    rows = [(words, 0.5) for words in (torch.tensor([1, 0]), torch.tensor([2]))]
    table = torch.randn(3, 2, requires_grad=True)
    function = ps.function(lambda words, scale: table[words].sum(0) * scale)
    expected = function.map(*columns_of(rows), out="stack")
    batch = function.collate(rows)
    monkeypatch.setattr(torch, "split", refuse)
    assert torch.equal(function.map(batch, out="stack"), expected)


def test_a_collated_batch_that_changed_before_a_second_order_is_noticed():
    rows = [(torch.randn(n, 2), 0.5) for n in (2, 1)]
    weight = torch.randn(2, requires_grad=True)
    function = ps.function(lambda words, scale: (words * weight.exp()).sum() * scale)
    batch = function.collate(rows)
    loss = function.map(batch, out="stack").sum()
    batch.columns()[0].leaves[0].values.joined.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, weight, create_graph=True)


@pytest.mark.parametrize("out", ["list", "stack"])
def test_a_collated_batch_runs_like_its_columns(out):
    function, rows = ps.function(total), examples()
    batch = pickle.loads(pickle.dumps(function.collate(rows)))
    expected = ps.function(total).map(*columns_of(rows), out=out)
    with without_planning():
        found = function.map(batch, out=out)
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right)
    assert (len(batch), batch.note) == (4, "")


def test_a_plan_serves_again_in_the_next_epoch():
    function, rows = ps.function(total), examples()
    first = function.map(function.collate(rows))
    with without_planning():
        for left, right in zip(function.map(*columns_of(rows)), first, strict=True):
            torch.testing.assert_close(left, right)


def test_another_function_or_other_limits_plan_anew():
    rows = examples()
    batch = ps.function(total).collate(rows)
    other = ps.function(lambda pair, scale: total(pair, scale) + 1)
    expected = [total(*row) + 1 for row in rows]
    for left, right in zip(other.map(batch), expected, strict=True):
        torch.testing.assert_close(left, right)
    same = ps.function(total)
    with (
        planning("never"),
        limits(live_rows=3),
        without_planning(),
        pytest.raises(AssertionError, match="planned"),
    ):
        same.map(batch)


def test_what_computed_values_decide_is_bound_only():
    @ps.function
    def halve(x):
        while x.sum() > 1:
            x = x / 2
        return x

    rows = [torch.full((2,), value) for value in (1.0, 5.0, 0.1)]
    batch = halve.collate(rows)
    assert batch.plans == ()
    assert "not decided by inputs alone" in batch.note
    for left, right in zip(halve.map(batch), halve.map(rows), strict=True):
        torch.testing.assert_close(left, right)


def test_an_error_of_an_instance_comes_from_the_map():
    @ps.function
    def pick(table, i):
        return table[i] * torch.ones(1)

    batch = pick.collate([(torch.tensor([1, 2]), 1), (torch.tensor([1, 2]), 7)])
    with pytest.raises(IndexError, match="instance  1"):
        pick.map(batch)
    results = ps.map(pick, batch, on_error="return")
    assert isinstance(results[1], IndexError)


def test_shared_arguments_are_given_to_both():
    @ps.function
    def scaled(x, factor):
        return x * factor

    rows, factor = [torch.ones(2), torch.zeros(2)], torch.tensor([2.0, 3.0], requires_grad=True)
    batch = scaled.collate(rows, factor=factor)
    outputs = scaled.map(batch, factor=factor, out="stack")
    outputs.sum().backward()
    assert outputs.tolist() == [[2, 3], [0, 0]]
    assert factor.grad.tolist() == [1, 1]


def test_ragged_instances_that_need_several_programs():
    @ps.function
    def mean(x):
        return x.mean()

    rows = [torch.ones(2, 3), torch.ones(4, 3), torch.ones(2, 5)]
    batch = pickle.loads(pickle.dumps(mean.collate(rows)))
    assert [output.item() for output in mean.map(batch)] == [1, 1, 1]


def attend(x):
    return ((x @ x.t()).softmax(1) @ x).sum(0)


def shift(x):
    """A block of two sequences, one of which is always shorter by one."""
    return (ps.map_fn(torch.sin, x[1:]) * x[:-1]).softmax(0)[0]


@pytest.mark.parametrize("program", [attend, shift])
def test_a_plan_with_padded_launches_runs_where_none_was_padded_before(program):
    rows = [torch.randn(n, 2) for n in (3, 5, 2, 7)]
    batch = pickle.loads(pickle.dumps(ps.function(program).collate(rows)))
    assert batch.note == ""
    with without_planning():
        found = ps.function(program).map(batch)
    for left, row in zip(found, rows, strict=True):
        torch.testing.assert_close(left, program(row))


def test_a_plan_for_other_padded_forms_than_those_at_hand_is_not_run():
    rows = [torch.randn(n, 2) for n in (3, 5)]
    batch = ps.function(shift).collate(rows)
    with patch.object(PaddedBlock, "has_form", lambda block, ties: False):
        found = ps.function(shift).map(batch)
        with without_planning(), pytest.raises(AssertionError, match="planned"):
            ps.function(shift).map(batch)
    for left, row in zip(found, rows, strict=True):
        torch.testing.assert_close(left, shift(row))


def test_eager_mode_takes_collated_batches():
    function, rows = ps.function(total), examples()
    batch = function.collate(rows)
    expected = [total(*row) for row in rows]
    ps.set_eager(True)
    try:
        for found in (function.map(batch), function.map(function.collate(rows))):
            for left, right in zip(found, expected, strict=True):
                torch.testing.assert_close(left, right)
    finally:
        ps.set_eager(False)


def test_examples_must_have_one_number_of_arguments():
    function = ps.function(total)
    with pytest.raises(ArgumentError, match=r"total\.collate: all examples") as caught:
        function.collate([(1, 2), (1,)])
    assert "example 1" in str(caught.value)
    with pytest.raises(ArgumentError, match="there must be one"):
        function.collate([])


def test_the_plan_is_small_and_flat():
    function = ps.function(total)
    (plan,) = function.collate(examples()).plans
    assert plan.integers.dtype == "int32"
    assert len(plan.shape) < 4000


def without_tensors(batch):
    """The batch after it has travelled in a form in which no tensor may."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, item):
            assert not isinstance(item, torch.Tensor)

    file = io.BytesIO()
    Pickler(file).dump(batch)
    return pickle.loads(file.getvalue())


def test_small_tensors_travel_as_bytes_and_are_as_they_were():
    @ps.function
    def f(x, mask, z, half, nothing):
        return x.sum() + mask.sum() + z.real.sum() + half.float().sum() + nothing.sum()

    rows = [
        (
            torch.randn(n, 2).t()[1],
            torch.tensor([True, False]),
            torch.randn(2, dtype=torch.complex64).conj(),
            torch.randn(3, dtype=torch.bfloat16),
            torch.empty(0),
        )
        for n in (3, 1, 4)
    ]
    batch = f.collate(rows)
    found = without_tensors(batch)
    torch.testing.assert_close(found.values(), batch.values(), rtol=0, atol=0)
    assert found.values()[2][0].dtype == torch.complex64
    torch.testing.assert_close(f.map(found), f.map(*columns_of(rows)))
    found.values()[0][0].add_(1)  # memory of its own, that may be written to


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64])
def test_a_deep_copy_is_a_batch_of_its_own_even_of_empty_tensors(dtype):
    f = ps.function(lambda x, y: (x.clone(), y.clone()))
    rows = [(torch.zeros(0, 2).to(dtype), torch.ones(3).to(dtype)) for _ in range(2)]
    batch = f.collate(rows)
    copy = deepcopy(batch)
    batch.values()[1][0].zero_()
    torch.testing.assert_close(f.map(copy), f.map(*columns_of(rows)))


def test_large_tensors_share_memory_between_processes(monkeypatch):
    monkeypatch.setattr(collate, "SMALL", 20)
    batch = ps.function(lambda x: x * 2).collate([torch.randn(n) for n in (3, 5)])
    with pytest.raises(AssertionError):
        without_tensors(batch)
    assert [x.shape for x in pickle.loads(pickle.dumps(batch)).values()[0]] == [(3,), (5,)]
