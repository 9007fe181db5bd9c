"""Each rule of padding against plain torch on each instance alone: values and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import penstock as ps
from penstock.run.batched import BlockInput, build_batched
from penstock.run.padding.function import PaddedFunction
from penstock.run.padding.ragged import Unpaddable
from tests.unit.run.padding_cases import CASES, CLASSES

BUCKETS = {"n": 9, "m": 7}
LENGTHS = {"n": (9, 3, 4, 0, 1, 2), "m": (2, 7, 5, 3, 1, 4)}


def spec_of(shape: tuple[Any, ...]) -> BlockInput:
    is_index = shape[-1:] == ("index",)
    return BlockInput("row", "int64" if is_index else "float64", shape[:-1] if is_index else shape)


class Sample:
    """Padded operands for rows of different lengths, and the same rows one by one."""

    def __init__(self, name: str) -> None:
        function, shapes = CASES[name]
        self.function = lambda *args: (function(*args),)
        self.inputs = [spec_of(shape) for shape in shapes]
        self.padded = PaddedFunction(self.function, self.inputs)
        names, least = self.padded.symbols, self.padded.least
        every = list(zip(*(LENGTHS[name] for name in names), strict=True))
        self.rows = [row for row in every if all(n >= least[s] for n, s in zip(row, names))]
        self.lengths = [torch.tensor(column) for column in zip(*self.rows, strict=True)]
        self.single = [self._row(row) for row in self.rows]

    def _row(self, lengths: tuple[int, ...]) -> list[torch.Tensor]:
        sizes = dict(zip(self.padded.symbols, lengths, strict=True))
        return [draw(spec, spec.sizes_at({"N": 1, **sizes}, batched=False)) for spec in self.inputs]

    def batched_arguments(self) -> list[torch.Tensor]:
        """The operands of all rows, zeros behind the end of each."""
        columns = []
        for place, spec in enumerate(self.inputs):
            shape = spec.sizes_at({"N": len(self.rows), **BUCKETS}, batched=True)
            column = torch.zeros(shape, dtype=spec.torch_dtype)
            for row, values in enumerate(self.single):
                column[row][tuple(slice(n) for n in values[place].shape)] = values[place].detach()
            columns.append(column)
        return columns


def draw(spec: BlockInput, shape: tuple[int, ...]) -> torch.Tensor:
    if spec.dtype == "int64":
        return torch.randint(0, CLASSES, shape)
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def valid(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values[tuple(slice(n) for n in like.shape)]


@pytest.mark.filterwarnings("ignore:var\\(\\)")
@pytest.mark.parametrize("name", CASES)
def test_padded_rows_agree_with_rows_alone(name):
    torch.manual_seed(0)
    sample = Sample(name)
    length = BlockInput("row", "int64", ())
    inputs = [*sample.inputs, *(length for _ in sample.lengths)]
    block = build_batched(sample.padded, inputs, name="padded")
    assert not block.unbatched
    columns = [c.requires_grad_(c.is_floating_point()) for c in sample.batched_arguments()]
    (made,) = block(len(sample.rows), *columns, *sample.lengths)
    made_values = made.detach()
    expected = [sample.function(*row)[0] for row in sample.single]
    for actual, one in zip(made_values, expected, strict=True):
        torch.testing.assert_close(valid(actual, one), one.detach(), equal_nan=True)
    if made.is_floating_point():
        check_gradients(sample, columns, made, expected)


def check_gradients(sample, columns, made, expected):
    weights = torch.zeros_like(made)
    for row, one in enumerate(expected):
        weight = torch.randn_like(one)
        valid(weights[row], one).copy_(weight)
        if one.requires_grad and one.isfinite().all():
            one.backward(weight)
    given = [column for column in columns if column.requires_grad]
    grads = iter(torch.autograd.grad(made, given, weights))
    for place, column in enumerate(columns):
        if not column.requires_grad:
            continue
        grad = next(grads)
        for row, values in enumerate(sample.single):
            if expected[row].isfinite().all():
                mine = values[place].grad
                mine = torch.zeros_like(values[place]) if mine is None else mine
                torch.testing.assert_close(valid(grad[row], mine), mine)


def test_an_operation_without_a_rule_is_named():
    spec = BlockInput("row", "float64", ("n",))
    with pytest.raises(Unpaddable, match="sort has no rule for padding"):
        PaddedFunction(lambda x: (x.sort().values,), [spec])


def test_sizes_that_matter_otherwise_are_told():
    spec = BlockInput("row", "float64", ("n",))
    with pytest.raises(Unpaddable, match="depends on its sizes"):
        PaddedFunction(lambda x: (x[::2].sum(),), [spec])


def test_a_block_that_fails_for_zeros_is_not_padded():
    @ps.function
    def shared(x, parts):
        return x.sum() % parts.max()

    xs, parts = [torch.arange(n) for n in (3, 5)], torch.tensor([[2, 1], [3, 4]])
    assert [int(found) for found in shared.map(xs, parts)] == [1, 2]


def test_two_padded_results_of_one_kind_do_not_share_their_memory():
    @ps.function
    def around(x):
        total = torch.cumsum(x, 0)
        return total[:-1], total[1:] * 2

    xs = [torch.arange(length + 1.0) for length in (3, 5, 4, 6)]
    for x, (first, second) in zip(xs, around.map(xs), strict=True):
        assert torch.equal(first, torch.cumsum(x, 0)[:-1])
        assert torch.equal(second, torch.cumsum(x, 0)[1:] * 2)
