from __future__ import annotations

import copy
import enum
import pickle
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from penstock.api.control_flow import cond, while_loop
from penstock.api.eager import set_eager
from penstock.api.function import Function, function
from penstock.api.mapping import map_instances
from penstock.api.markers import shared, static
from penstock.api.sequences import scan
from penstock.capture.tensor_array import TensorArray
from penstock.data import Tree
from penstock.errors import ArgumentError, ColumnError, PenstockWarning, TracedValueError

x3 = torch.tensor([1.0, -2.0, 3.0])


class TreeSum(nn.Module):
    """Sums embedded tokens over a tree."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.scale = 2.0

    @function
    def node(self, tree, i):
        return cond(
            tree.is_leaf(i),
            lambda: self.embedding(tree.token[i]) * self.scale,
            lambda: torch.tanh(self.node(tree, tree.left(i)) + self.node(tree, tree.right(i))),
        )

    @function
    def forward(self, tree):
        return self.node(tree, tree.root)


@function
def power(x, n=2):
    return while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * x), (0, x * 0 + 1))[1]


TREES = [Tree.from_nested(nested) for nested in (((7, 8), 9), (1, 2), ((1, (2, 3)), (4, 5)), 6)]


def traces(fn: Function) -> int:
    return fn._traces.misses


def test_a_function_keeps_its_name_and_docstring() -> None:
    def documented(x):
        """Says what it does."""
        return x

    made = function(documented)
    assert (made.__name__, made.__doc__) == ("documented", "Says what it does.")
    assert repr(made) == "<ps.function documented>"
    assert function(name="other")(documented)._name == "other"


def test_calls_bind_defaults_keywords_and_numbers() -> None:
    torch.testing.assert_close(power(x3), x3**2)
    torch.testing.assert_close(power(x3, 3), x3**3)
    torch.testing.assert_close(power(n=3, x=x3), x3**3)
    assert power(2.0, 5) == 32.0
    with pytest.raises(TypeError, match="missing a required argument"):
        power()


def test_nested_arguments_and_results_keep_their_structure() -> None:
    @dataclass
    class Point:
        x: Any
        y: Any

    @function
    def swap(point, extra):
        return Point(point.y, point.x), {"sum": extra[0] + extra[1]["z"], "kind": "swapped"}

    point, rest = swap(Point(x3, 2), (1, {"z": x3}))
    assert isinstance(point, Point)
    assert point.x == 2
    assert rest["kind"] == "swapped"
    torch.testing.assert_close(rest["sum"], x3 + 1)


def test_static_arguments_are_part_of_the_program() -> None:
    class Mode(enum.Enum):
        UP = 1
        DOWN = 2

    @function
    def step(x, mode, table=None):
        y = x + 1 if mode is Mode.UP else x - 1
        return y if table is None else y * table["factor"]

    torch.testing.assert_close(step(x3, Mode.UP), x3 + 1)
    torch.testing.assert_close(step(x3, Mode.DOWN), x3 - 1)
    torch.testing.assert_close(step(x3, Mode.UP, static({"factor": 3})), (x3 + 1) * 3)
    assert traces(step) == 3


def test_other_objects_are_refused_with_the_way_out() -> None:
    class PythonTree:
        pass

    with pytest.raises(ArgumentError) as info:
        power(PythonTree())
    text = str(info.value)
    assert text.startswith("This argument cannot be traced.\n  at ")
    assert "  argument  x   PythonTree\n" in text
    assert "ps.data.Tree" in text
    assert "ps.map" in text


def test_numbers_of_numpy_are_numbers_and_arrays_are_refused_with_the_way_out() -> None:
    assert power(torch.tensor(3.0), np.int64(2)) == power(torch.tensor(3.0), 2)
    with pytest.raises(ArgumentError, match=r"array into a tensor with torch\.as_tensor"):
        power(np.ones(3), 2)
    with pytest.raises(ColumnError, match=r"array into a tensor with torch\.as_tensor"):
        power.map(np.ones(3), [1, 2, 3])


def test_map_equals_the_calls_one_by_one() -> None:
    columns = [torch.tensor(1.5), torch.tensor(-2.0), torch.tensor(3.0)], [0, 1, 4]
    expected = [power(*row) for row in zip(*columns, strict=True)]
    torch.testing.assert_close(power.map(*columns), expected)
    torch.testing.assert_close(power.map(torch.stack(columns[0]), columns[1]), expected)
    torch.testing.assert_close(power.map(*columns, out="stack"), torch.stack(expected))
    assert power.map([], []) == []


def test_shared_arguments_are_the_same_for_all_instances() -> None:
    @function
    def affine(x, weight, bias=0.0, steps=1):
        return while_loop(lambda i, y: i < steps, lambda i, y: (i + 1, weight * y + bias), (0, x))[
            1
        ]

    weight = torch.tensor([1.0, 2.0, 3.0])
    rows = [x3, x3 + 1]
    expected = [affine(x, weight, 0.5, 2) for x in rows]
    torch.testing.assert_close(affine.map(rows, shared(weight), bias=0.5, steps=2), expected)
    torch.testing.assert_close(affine.map(rows, weight=weight, bias=0.5, steps=2), expected)
    before = traces(affine)
    torch.testing.assert_close(
        affine.map(rows, weight=weight * 2, bias=0.5, steps=2),
        [affine(x, weight * 2, 0.5, 2) for x in rows],
    )
    assert traces(affine) == before


def test_methods_of_modules_are_programs_of_their_module() -> None:
    model = TreeSum()
    with set_eager(True):
        expected = [model(tree) for tree in TREES]
    torch.testing.assert_close([model(tree) for tree in TREES], expected)
    torch.testing.assert_close(map_instances(model, TREES), expected)
    torch.testing.assert_close(model.forward.map(TREES), expected)
    assert list(model.state_dict()) == ["embedding.weight"]
    assert traces(model.forward) == 1


def test_modules_see_new_parameters_settings_and_devices() -> None:
    model = TreeSum()
    first = model(TREES[3])
    with torch.no_grad():
        model.embedding.weight.mul_(2)
    torch.testing.assert_close(model(TREES[3]), first * 2)
    model.embedding.weight = nn.Parameter(torch.ones(10, 4))
    torch.testing.assert_close(model(TREES[3]), torch.full((4,), 2.0))
    model.scale = 3.0
    torch.testing.assert_close(model(TREES[3]), torch.full((4,), 3.0))
    assert model.double()(TREES[3]).dtype == torch.float64


def test_decorated_modules_can_be_copied_and_pickled() -> None:
    model = TreeSum()
    result = model(TREES[0])
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(TREES[0]), result)
        with torch.no_grad():
            other.embedding.weight.zero_()
        torch.testing.assert_close(model(TREES[0]), result)
    assert pickle.loads(pickle.dumps(power)) is power
    assert copy.deepcopy(power) is power


class Layer(nn.Module):
    """A method that a subclass overrides."""

    @function
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As it is."""
        return x + 1

    double = function(lambda self, x: x * 2, name="forward")


class Doubled(Layer):
    """Calls what it overrides."""

    @function
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Twice as much."""
        return super().forward(x) * 2

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        """What is overridden."""
        return super().forward(x)


def test_methods_with_one_name_have_programs_of_their_own() -> None:
    one, other, x = Doubled(), Doubled(), torch.tensor(3.0)
    assert [one.plain(x).item(), one(x).item(), one.double(x).item()] == [4, 8, 6]
    assert [other(x).item(), other.plain(x).item(), other.double(x).item()] == [8, 4, 6]
    again = copy.deepcopy(one)
    assert [again.plain(x).item(), again(x).item(), one(x).item()] == [4, 8, 8]


def test_programs_are_found_again() -> None:
    @function
    def f(x):
        return x * 2

    for _ in range(3):
        f(x3)
    assert (f._traces.hits, f._traces.misses) == (2, 1)


def test_a_second_size_makes_a_leading_dimension_dynamic() -> None:
    @function
    def total(x):
        return x.sum()

    for size in (3, 4, 5, 6):
        assert total(torch.ones(size, 2)) == 2 * size
    assert traces(total) == 2


def test_equal_sizes_are_told_apart_when_they_differ() -> None:
    @function
    def outer(x, y):
        return x[:, None] * y[None, :] / (x.shape[0] + y.shape[0])

    for n, m in ((3, 3), (4, 5), (6, 6), (2, 7)):
        assert outer(torch.ones(n), torch.ones(m)).shape == (n, m)
    assert traces(outer) == 2


def test_instances_of_different_shapes_share_a_program_or_are_grouped() -> None:
    @function
    def mean(x):
        return x.mean(0)

    @function(autograph=False)
    def unrolled(x):
        return sum(x[i] for i in range(x.shape[0]))

    @function
    def squares(x):
        return x @ x

    rows = [torch.randn(n, 3) for n in (2, 4, 2, 5)]
    torch.testing.assert_close(mean.map(rows), [row.mean(0) for row in rows])
    assert traces(mean) == 1
    torch.testing.assert_close(unrolled.map(rows), [row.sum(0) for row in rows])
    assert unrolled._traces.misses >= 3
    matrices = [torch.randn(n, n) for n in (2, 3, 2)]
    torch.testing.assert_close(squares.map(matrices), [m @ m for m in matrices])
    mixed = [torch.ones(3), torch.ones(2, 3), torch.ones(3)]
    assert [int(y.sum()) for y in function(lambda x: x * 2).map(mixed)] == [6, 12, 6]


def test_out_stack_and_pad_name_the_leaf_that_does_not_fit() -> None:
    @function
    def pair(x):
        return {"sum": x.sum(), "rows": x * 2}

    rows = [torch.ones(2), torch.ones(2), torch.ones(4)]
    with pytest.raises(ColumnError) as info:
        pair.map(rows, out="stack")
    text = str(info.value)
    assert "  instance 0  result['rows']   float32[2]\n" in text
    assert "  instance 2  result['rows']   float32[4]\n" in text
    padded = pair.map(rows, out="pad")
    assert padded["rows"].values.shape == (3, 4)
    assert padded["rows"].lengths.tolist() == [2, 2, 4]
    assert padded["sum"].lengths is None
    with pytest.raises(ArgumentError, match="'list', 'stack' or 'pad'"):
        pair.map(rows, out="tuple")


def test_eager_maps_have_the_same_forms() -> None:
    with set_eager(True):
        assert power.map([1.0, 2.0], [2, 3], out="stack").tolist() == [1.0, 8.0]
        assert [float(y) for y in power.map([1.0, 2.0], [2, 3])] == [1.0, 8.0]
        assert power.map([], []) == []


def test_columns_must_fit_together() -> None:
    with pytest.raises(ColumnError) as info:
        power.map([1.0, 2.0], [1, 2, 3])
    assert "  column 0  2 instances\n  column 1  3 instances\n" in str(info.value)
    with pytest.raises(ColumnError, match="column 1 does not hold one value per instance"):
        power.map([1.0], 3)


def test_an_instance_that_differs_is_named_by_its_index() -> None:
    @function
    def f(x):
        return x["a"] * 2

    with pytest.raises(ColumnError, match="instance 2 of x has another structure") as info:
        f.map([{"a": x3}, {"a": x3}, {"b": x3}])
    assert "  instance 0  {'a': float32[3]}\n  instance 2  {'b': float32[3]}\n" in str(info.value)
    with pytest.raises(ColumnError, match="instance 1 has another type") as info:
        f.map([{"a": x3}, {"a": x3.long()}])
    assert "  instance 1  x['a']   int64[3]\n" in str(info.value)


def test_only_callables_can_be_mapped() -> None:
    with pytest.raises(ArgumentError, match=r"only functions and modules can be mapped"):
        map_instances(3, [x3])


def test_many_traces_warn_with_what_changed() -> None:
    @function
    def f(x, mode):
        return x

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(12):
            f(x3, f"mode {number}")
    texts = [str(item.message) for item in caught if item.category is PenstockWarning]
    assert len(texts) == 1
    assert "f was traced 9 times" in texts[0]
    assert "'mode 7') -> " in texts[0] or "mode 7" in texts[0]


def test_plain_values_that_a_function_reads_are_guarded() -> None:
    factor = 2

    @function
    def f(x):
        return x * factor

    torch.testing.assert_close(f(x3), x3 * 2)
    factor = 5
    torch.testing.assert_close(f(x3), x3 * 5)


def test_training_and_evaluation_are_different_programs() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = nn.Dropout(0.5)

        @function
        def forward(self, x):
            return self.dropout(x)

    model = Noisy()
    torch.testing.assert_close(model.eval()(x3), x3)
    noisy = model.train()(torch.ones(1000))
    assert set(noisy.tolist()) == {0.0, 2.0}
    assert 350 < int((noisy == 0).sum()) < 650


def test_the_default_dtype_is_guarded() -> None:
    @function
    def f(x):
        return cond(x > 0, lambda: 1.5, lambda: 2.5)

    assert f(1).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert f(1).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_traced_value_in_python_control_flow_is_refused() -> None:
    @function(autograph=False)
    def f(x):
        return x if x.sum() > 0 else -x

    with pytest.raises(TracedValueError, match=r"Use ps.cond instead of `if`"):
        f(x3)


def test_programs_graphs_and_schedules_can_be_looked_at() -> None:
    assert str(power.program(x3, 3)).startswith("def power(%0: float32[3], %1: int64[]):")
    assert power.graph(x3, 3) is not None
    assert power.schedule([x3, x3], [2, 3]) is not None


def test_under_set_eager_functions_are_plain_python() -> None:
    @function
    def f(x, n):
        assert isinstance(n, torch.Tensor)
        return x * 2 if n > 1 else x

    with set_eager(True):
        torch.testing.assert_close(f(x3, 2), x3 * 2)
        torch.testing.assert_close(f(x3, 1), x3)


def test_a_sequence_program_serves_all_lengths() -> None:
    cell = nn.GRUCell(3, 4)

    @function
    def encode(xs):
        def step(h, x):
            h = cell(x[None], h[None])[0]
            return h, h

        return scan(step, torch.zeros(4), xs)

    rows = [torch.randn(n, 3) for n in (3, 1, 6)]
    with set_eager(True):
        expected = [encode(row) for row in rows]
    torch.testing.assert_close(encode.map(rows), expected)
    torch.testing.assert_close([encode(row) for row in rows], expected)
    assert traces(encode) == 1


def test_errors_can_be_returned_in_a_list_only() -> None:
    @function
    def read(x, i):
        return TensorArray.unstack(x).read(i)

    columns = [x3, x3, x3], [0, 7, 2]
    first, second, third = map_instances(read, *columns, on_error="return")
    assert (first, third) == (x3[0], x3[2])
    assert isinstance(second, IndexError)
    with pytest.raises(ArgumentError, match="exceptions can be returned in a list only"):
        map_instances(read, *columns, on_error="return", out="stack")


def test_no_instances_launch_nothing() -> None:
    double = function(lambda x, y: x * 2 + y)
    found = double.schedule([], torch.empty(0, 3))
    assert (found.launches, str(found)) == ([], "schedule: 0 launches, 0 arenas")
    assert found.digest() == double.schedule([], []).digest()
