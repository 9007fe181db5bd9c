from __future__ import annotations

import pytest
import torch

from penstock.api.control_flow import while_loop
from penstock.api.function import function
from penstock.api.sequences import foldl, map_fn, scan
from penstock.capture.tensor_array import TensorArray
from penstock.errors import TracedValueError
from tests.unit.capture.tracing import assert_agrees, entry_of, operations

x5 = torch.arange(20.0).reshape(5, 4) / 3


def input_shapes(entry) -> list:
    return [value.type.shape for value in entry.program.entry.body.inputs]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.view(x.shape[0], 2, 2),
        lambda x: sum(x[i].sum() for i in range(x.shape[0])),
        lambda x: x[0] + x[-1],
        lambda x: x.reshape(x.size(0) * x.size(1)),
        lambda x: torch.zeros(x.shape),
        lambda x: x.sum() * (1 if x.shape[0] > 3 else 2),
        lambda x: x[x[0].argmax()],
        lambda x: x / x.shape[1] ** 0.5,
    ],
)
def test_a_size_used_by_python_stays_static(fn) -> None:
    assert input_shapes(assert_agrees(function(fn, autograph=False), x5)) == [(5, 4)]


def _sum_by_index(x):
    step = lambda i, s: (i + 1, s + x[i].sum())  # noqa: E731
    return while_loop(lambda i, s: i < 5, step, (0, 0.0))[1]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sum() / x.shape[0],
        lambda x: (x.sum() > x.shape[0]) & (x.mean() < x.size(0) * 2),
        lambda x: while_loop(lambda i: i < x.shape[0], lambda i: i + 1, 0),
        _sum_by_index,
        lambda x: scan(lambda c, e: (c + e, c), torch.zeros(4), x),
        lambda x: foldl(lambda c, e: c + e, x * 2, torch.zeros(4)),
        lambda x: map_fn(lambda e: e.sum(), x @ torch.ones(4, 3)),
        lambda x: TensorArray.unstack(x).read(2),
        lambda x: TensorArray(x.shape[0]).size(),
        lambda x: torch.tensor(x.shape[0]) + 1,
    ],
)
def test_a_size_used_as_a_value_is_dynamic_from_the_first_trace(fn) -> None:
    assert input_shapes(assert_agrees(fn, x5)) == [("n0", 4)]


def test_dynamic_sizes_can_be_computed_with_and_passed_as_sizes() -> None:
    def f(x):
        n = x.shape[0]
        half = n // 2
        y = x.sum() / n
        return (
            y,
            x.view(n, 2, 2),
            x.reshape(n * 2, 2),
            torch.zeros(n, 3),
            x.new_ones(n - 1),
            torch.arange(n),
            torch.ones(1, 4).expand(n, 4),
            x.narrow(0, 1, n - 2),
            x[: n - 1],
            x[half:],
            torch.cat([x, x]),
            torch.full((n,), 2.0),
            x.numel(),
            torch.arange(n) < n - 1,
        )

    entry = assert_agrees(f, x5)
    shapes = [value.type.shape for value in entry.program.entry.body.outputs]
    dynamic = [shape for shape in shapes if shape]
    assert all(isinstance(shape[0], str) for shape in dynamic)
    same_as_input = [dynamic[k][0] for k in (0, 2, 4, 5)]
    assert same_as_input == ["n0"] * 4


def test_a_slice_by_a_traced_number_has_a_size_of_its_own() -> None:
    entry = assert_agrees(lambda x, n: (x[:n], x[n:]), x5, 2)
    shapes = [value.type.shape for value in entry.program.entry.body.outputs]
    assert shapes[0][0] != shapes[1][0]
    assert all(isinstance(shape[0], str) for shape in shapes)


def test_dimensions_that_are_equal_share_a_symbol() -> None:
    def f(x, y, z):
        return (x + y).sum() / x.shape[0] + z.sum() / z.shape[0] + y.sum() / y.shape[0]

    entry = assert_agrees(f, torch.ones(5), torch.ones(5), torch.ones(3))
    assert input_shapes(entry) == [("n0",), ("n0",), ("n1",)]


def test_a_size_that_weights_fix_is_pinned_after_one_try() -> None:
    weight = torch.ones(3, 5)
    entry = assert_agrees(lambda x: (weight @ x) / x.shape[0], torch.arange(5.0))
    assert input_shapes(entry) == [(5,)]
    assert entry.traced.pinned == {(0, 0)}


def test_reads_by_control_indices_are_elements() -> None:
    def f(x, i):
        y = torch.tanh(x)
        return x[i], x[i, 1:], y[i], y[i + 1], x[-1]

    entry = assert_agrees(f, x5, 2)
    assert operations(entry).count("Element") == 5
    assert operations(entry).count("AsSequence") == 0  # y is a sequence because x is one


def test_an_intermediate_of_static_length_is_stored_as_a_sequence() -> None:
    def f(x, i):
        y = x.view(4, 5)
        step = lambda k, s: (k + 1, s + y[k])  # noqa: E731
        return while_loop(lambda k, s: k < i, step, (0, torch.zeros(5)))[1]

    entry = assert_agrees(f, torch.arange(20.0), 3)
    assert operations(entry).count("AsSequence") == 1
    assert "AsSequence" in [type(n.operation).__name__ for n in entry.program.entry.body.nodes]


def test_a_data_index_and_a_captured_table_stay_torch_calls() -> None:
    table = torch.arange(8.0).reshape(4, 2)
    entry = assert_agrees(lambda x, i: (table[i], x[x[:, 0].argmin()]), x5, 1)
    assert operations(entry).count("torch.Tensor.__getitem__") == 3
    assert "Element" not in operations(entry)


def test_len_and_iteration_of_a_dynamic_dimension_are_refused() -> None:
    with pytest.raises(TracedValueError, match=r"len\(\) needs them"):
        _dynamic(lambda x: len(x))
    with pytest.raises(TracedValueError, match="iteration needs them"):
        _dynamic(lambda x: sum(row.sum() for row in x))
    with pytest.raises(TracedValueError, match=r"ps.scan, ps.map_fn or ps.while_loop"):
        _dynamic(lambda x: range(x.shape[0]))


def _dynamic(fn):
    """Trace with a dynamic first dimension that cannot be pinned."""
    from penstock.api.batches import one_instance
    from penstock.capture.trace import InputLeaf, TraceRequest, trace

    traced = function(fn, autograph=False)
    batch = one_instance((x5,), {}, ["x"])
    leaves = (InputLeaf(torch.float32, (5, 4)),)
    places = frozenset({(0, 0)})
    return trace(TraceRequest(traced._callee, batch.structure, leaves, places))


def test_static_results_of_a_map_over_a_static_length_stay_static() -> None:
    weight = torch.ones(4, 2)

    def f(x):
        heads = x.view(4, 5)
        return map_fn(lambda head: head.sum(), heads) @ weight

    entry = assert_agrees(f, torch.arange(20.0))
    assert entry.program.entry.body.outputs[0].type.shape == (2,)


def test_different_worlds_never_leak_into_python() -> None:
    with pytest.raises(TracedValueError, match="depends on the contents"):
        entry_of(lambda x: x[x > 1], x5)
