"""What a batched block promises: its text, fallback with a warning, a check, dtypes."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from penstock.errors import PenstockWarning
from penstock.run.batched import BlockInput, build_batched
from penstock.run.batched.check import find_disagreement

H = 6


def row(*shape, dtype="float32"):
    return BlockInput("row", dtype, shape)


def uniform(*shape, dtype="float32"):
    return BlockInput("uniform", dtype, shape)


def tree_cell(weight, bias, left_h, left_c, right_h, right_c):
    gates = torch.cat([left_h, right_h]) @ weight + bias
    i, f_left, f_right, o, u = gates.chunk(5)
    c = i.sigmoid() * u.tanh() + f_left.sigmoid() * left_c + f_right.sigmoid() * right_c
    return o.sigmoid() * c.tanh(), c


CELL_INPUTS = [uniform(2 * H, 5 * H), uniform(5 * H), *[row(H)] * 4]


def calls(source: str) -> list[str]:
    return re.findall(r"\b(?:torch[\w.]*\.|\w+\.)(\w+)\(", source)


def test_a_tree_cell_is_printed_as_one_would_write_it():
    source = build_batched(tree_cell, CELL_INPUTS, name="cell").source
    names = calls(source)
    assert names.count("addmm") == 1
    assert names.count("cat") == 1
    assert not {"view", "reshape", "unsqueeze", "squeeze", "expand", "mm"} & set(names)
    assert source.count(" * ") + source.count(" + ") == 6


def test_a_linear_cell_is_one_linear_call():
    linear = nn.Linear(2 * H, 5 * H)

    def cell(weight, bias, a, b):
        return (F.linear(torch.cat([a, b]), weight, bias).tanh(),)

    inputs = [uniform(*linear.weight.shape), uniform(*linear.bias.shape), row(H), row(H)]
    assert calls(build_batched(cell, inputs, name="linear").source) == ["cat", "linear", "tanh"]


def test_rows_with_a_leading_one_use_plain_products():
    def function(weight, bias, second, x):
        return (F.linear(F.linear(x, weight, bias).sigmoid(), second),)

    inputs = [uniform(4, 3), uniform(4), uniform(5, 4), row(1, 3)]
    names = calls(build_batched(function, inputs, name="flat").source)
    assert names == ["reshape", "linear", "sigmoid", "linear", "reshape"]


def test_rows_given_a_leading_one_inside_are_joined_without_it():
    def function(weight, x, y):
        return ((torch.cat([x[None], y[None]], 1) @ weight)[0],)

    block = build_batched(function, [uniform(6, 4), row(3), row(3)], name="joined")
    assert calls(block.source) == ["cat", "mm"]


def test_an_embedding_of_one_index_is_one_embedding():
    block = build_batched(
        lambda w, i: (F.embedding(i, w),), [uniform(5, 3), row(1, dtype="int64")], name="e"
    )
    assert calls(block.source) == ["embedding"]


def test_cells_of_one_bias_and_two_products_keep_both():
    def function(first, second, bias, x):
        product = x @ first
        return product + bias, product * 2, x @ second

    block = build_batched(
        function, [uniform(3, 4), uniform(3, 4), uniform(4), row(3)], name="shared product"
    )
    assert "addmm" not in block.source


def test_equal_steps_are_computed_once():
    block = build_batched(lambda x: (x.exp() + 1, x.exp() * 2), [row(3)], name="twice")
    assert calls(block.source).count("exp") == 1


def test_temporaries_are_deleted_after_their_last_use():
    source = build_batched(lambda x: (x.exp().sin().cos(),), [row(3)], name="chain").source
    assert "del exp" in source
    assert "del sin" in source


def test_an_operation_without_a_rule_runs_row_by_row_with_a_warning_that_names_it():
    with pytest.warns(
        PenstockWarning, match="block 'hist' runs row by row: histc cannot be batched"
    ):
        block = build_batched(lambda x: (x.histc(4, -1, 1) * 2,), [row(6)], name="hist")
    assert block.unbatched == ("histc",)
    x = torch.randn(5, 6)
    expected = torch.stack([x[i].histc(4, -1, 1) * 2 for i in range(5)])
    assert torch.equal(block(5, x)[0], expected)
    assert block(0, x[:0])[0].shape == (0, 4)


def test_an_operation_on_uniform_values_needs_no_rule():
    block = build_batched(
        lambda u, x: (u.histc(4, -1, 1) + x,), [uniform(6), row(4)], name="uniform histogram"
    )
    assert block.unbatched == ()


def test_an_operation_that_draws_from_a_generator_runs_row_by_row():
    with pytest.warns(PenstockWarning, match="row by row"):
        block = build_batched(lambda x: (F.dropout(x, 0.5),), [row(6)], name="random")
    assert block.unbatched
    assert block(3, torch.ones(3, 6))[0].shape == (3, 6)


def test_reading_a_value_runs_row_by_row():
    with pytest.warns(PenstockWarning, match="row by row: item cannot be batched"):
        block = build_batched(lambda x: (x * 2 if x.sum() > 0 else -x,), [row(2)], name="branch")
    x = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    assert torch.equal(block(2, x)[0], torch.tensor([[2.0, 2.0], [1.0, 1.0]]))


def test_an_operation_whose_result_has_no_fixed_shape_is_named():
    with pytest.warns(PenstockWarning, match="nonzero cannot be batched"):
        block = build_batched(lambda x: (x.nonzero().sum(),), [row(3)], name="places")
    assert block.unbatched == ("nonzero",)


def test_a_form_that_disagrees_is_never_used():
    state = {"calls": 0}

    def function(x):
        state["calls"] += 1
        return (x + (1.0 if state["calls"] > 1 else 2.0),)

    with pytest.warns(PenstockWarning, match="differ"):
        block = build_batched(function, [row(2)], name="fickle")
    assert torch.equal(block(1, torch.zeros(1, 2))[0], torch.ones(1, 2))


def test_building_leaves_the_random_state_alone():
    state = torch.get_rng_state()
    build_batched(tree_cell, CELL_INPUTS, name="cell")
    assert torch.equal(state, torch.get_rng_state())


def test_nan_agrees_with_nan_and_ties_are_no_disagreement():
    inputs = [row(4)]
    points = [{"N": 3}]

    def function(x):
        return (torch.log(x - 5),)

    assert find_disagreement(function, lambda n, x: function(x), inputs, points, {}) is None


def test_a_function_that_moves_its_rows_to_a_device_is_compared_on_the_host():
    inputs, points = [row(4)], [{"N": 3}]

    def problem(factor):
        moving = lambda x: (torch.sin(x.to("meta")) + torch.ones(4, device="meta"),)  # noqa: E731
        batched = lambda n, x: (torch.sin(x) * factor + 1,)  # noqa: E731
        return find_disagreement(moving, batched, inputs, points, {})

    assert problem(1.0) is None
    assert "values differ" in problem(1.1)


def test_a_wrong_shape_dtype_or_value_is_found():
    inputs, points = [row(4)], [{"N": 3}]

    def problem(batched):
        return find_disagreement(lambda x: (x * 2,), batched, inputs, points, {})

    assert "values differ" in problem(lambda n, x: (x * 2.1,))
    assert "torch.float64" in problem(lambda n, x: ((x * 2).double(),))
    assert "[3, 1, 4]" in problem(lambda n, x: ((x * 2)[:, None],))
    assert "RuntimeError" in problem(lambda n, x: (x.view(5),))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_floating_dtypes_agree_with_rows_apart(dtype):
    def function(w, b, x, y):
        z = torch.cat([x, y]) @ w + b
        return z.softmax(0), z.argmax(), (z > 0), z.sum().reshape(1), x[0] * 2.5

    inputs = [uniform(6, 5, dtype=dtype), uniform(5, dtype=dtype), *[row(3, dtype=dtype)] * 2]
    block = build_batched(function, inputs, name="dtype")
    assert block.unbatched == ()
    generator = torch.Generator().manual_seed(0)
    make = [torch.randn(s, generator=generator) for s in ((6, 5), (5,), (4, 3), (4, 3))]
    w, b, x, y = [tensor.to(getattr(torch, dtype)) for tensor in make]
    for i in range(4):
        for left, right in zip(block(4, w, b, x, y), function(w, b, x[i], y[i]), strict=True):
            assert left.dtype == right.dtype
            torch.testing.assert_close(left[i], right, rtol=1e-2, atol=1e-2)


def test_a_block_without_row_inputs_repeats_its_outputs():
    block = build_batched(lambda u: (u * 2, torch.ones(3)), [uniform(2)], name="constant")
    first, second = block(5, torch.ones(2))
    assert torch.equal(first, torch.full((5, 2), 2.0))
    assert torch.equal(second, torch.ones(5, 3))


def test_closed_over_tensors_are_seen_as_they_are_at_each_launch():
    weight = torch.ones(3)
    block = build_batched(lambda x: (x * weight,), [row(3)], name="closure")
    weight.mul_(5)
    assert torch.equal(block(2, torch.ones(2, 3))[0], torch.full((2, 3), 5.0))


def test_the_default_dtype_of_the_trace_is_kept():
    block = build_batched(lambda x: (x + torch.zeros(3),), [row(3)], name="zeros")
    torch.set_default_dtype(torch.float64)
    try:
        assert block(2, torch.ones(2, 3, dtype=torch.float32))[0].dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_rows_that_are_not_contiguous_are_welcome():
    block = build_batched(tree_cell, CELL_INPUTS, name="cell")
    tensors = [torch.randn(2 * H, 5 * H), torch.randn(5 * H)]
    rows = [torch.randn(H, 4).t() for _ in range(4)]
    plain = block(4, *tensors, *[r.contiguous() for r in rows])
    for left, right in zip(block(4, *tensors, *rows), plain, strict=True):
        torch.testing.assert_close(left, right)


def test_building_works_under_inference_mode_and_no_grad():
    with torch.inference_mode():
        block = build_batched(tree_cell, CELL_INPUTS, name="cell")
    with torch.no_grad():
        again = build_batched(tree_cell, CELL_INPUTS, name="cell")
    assert block.source == again.source


def test_a_block_runs_without_rows():
    block = build_batched(tree_cell, CELL_INPUTS, name="cell")
    h, c = block(0, torch.randn(2 * H, 5 * H), torch.randn(5 * H), *[torch.zeros(0, H)] * 4)
    assert h.shape == c.shape == (0, H)


def test_real_tensors_may_stand_in_for_uniform_inputs_in_the_check():
    table = torch.tensor([4, 3, 2])
    inputs = [uniform(3, dtype="int64"), row(5)]
    block = build_batched(lambda i, x: (x[i],), inputs, name="pick", examples={0: table})
    assert torch.equal(block(1, table, torch.arange(5.0)[None])[0], torch.tensor([[4.0, 3.0, 2.0]]))


def test_literals_are_cast_when_the_block_is_built():
    block = build_batched(
        lambda x: (x * torch.tensor([1, 2, 3]).to(torch.float64),), [row(3)], name="literal"
    )
    assert calls(block.source) == []


def test_columns_are_multiplied_from_the_left():
    inputs = [row("n", H), row(H)]
    block = build_batched(lambda memory, h: (memory @ h,), inputs, name="scores")
    assert "torch.bmm(reshape, permute)" in block.source
    memory, h = torch.randn(3, 5, H), torch.randn(3, H)
    torch.testing.assert_close(block(3, memory, h)[0], torch.einsum("rnh,rh->rn", memory, h))


def test_a_sum_of_outer_products_is_one_product():
    def both(a, b, c, d):
        return (torch.outer(a, b) + torch.outer(c, d),)

    def by_products(a, b, c, d):
        return (a[:, None] @ b[None] + (d[:, None] @ c[None]).T,)

    vectors = [torch.randn(3, size) for size in (5, H, 5, H)]
    block = build_batched(by_products, [row(5), row(H)] * 2, name="outer")
    assert calls(block.source).count("bmm") == 1
    (expected,) = torch.func.vmap(both)(*vectors)
    torch.testing.assert_close(block(3, *vectors)[0], expected)
