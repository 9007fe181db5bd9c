from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from penstock.api.control_flow import cond, switch, while_loop
from penstock.api.function import function
from penstock.api.sequences import foldl, foldr, map_fn, scan
from penstock.capture.tensor_array import TensorArray
from penstock.errors import (
    BranchTypeError,
    LoopTypeError,
    PenstockWarning,
    RecursionLimitError,
    StructureError,
    TracedValueError,
)
from tests.unit.capture.tracing import assert_agrees, entry_of, interpreted, operations

x3 = torch.tensor([1.0, -2.0, 3.0])


@dataclass
class State:
    total: torch.Tensor
    steps: int


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def test_branches_read_outer_values_and_return_nested_ones() -> None:
    def f(x, flag):
        y = x * 2
        return cond(
            flag,
            lambda x: {"a": x + y, "b": (1, None)},
            lambda x: {"b": (2, None), "a": x},
            (x,),
        )

    assert_agrees(f, x3, True)
    assert_agrees(f, x3, False)


def test_a_python_predicate_is_decided_while_tracing() -> None:
    entry = assert_agrees(lambda x: cond(x.dim() == 1, lambda: x, lambda: -x), x3)
    assert "Branch" not in operations(entry)
    entry = assert_agrees(lambda x: switch(1, [lambda: x, lambda: x + 1]), x3)
    assert "Branch" not in operations(entry)


def test_states_keep_their_form() -> None:
    def f(x):
        state = while_loop(
            lambda s: s.steps < 3,
            lambda s: State(s.total + x.sum(), s.steps + 1),
            State(torch.tensor(0.0), 0),
        )
        pair = while_loop(
            lambda p: p.left < 5, lambda p: Pair(p.left + 1, p.right * 2), Pair(x[0], x[1])
        )
        listed = while_loop(lambda a, b: a < 3, lambda a, b: [a + 1, b - 1], [0, 1.5])
        return (
            state.total,
            state.steps,
            pair,
            listed,
            while_loop(lambda n: n < 5, lambda n: n + 2, 0),
        )

    assert_agrees(f, x3)


def test_maximum_iterations_may_be_a_number_or_traced() -> None:
    def f(n):
        fixed = while_loop(lambda i: True, lambda i: i + 1, 0, maximum_iterations=4)
        traced = while_loop(lambda i: i < 100, lambda i: i + 1, 0, maximum_iterations=n)
        return fixed, traced

    entry = entry_of(f, 3)
    loops = [node.operation for node in entry.program.entry.body.nodes if node.bodies]
    assert [loop.maximum_iterations for loop in loops] == [4, None]
    assert_agrees(
        lambda n: while_loop(lambda i: i < 100, lambda i: i + 1, 0, maximum_iterations=4), 3
    )


def test_a_carried_dynamic_dimension_that_changes_gets_a_symbol_of_its_own() -> None:
    def f(x):
        n = x.shape[0]
        return while_loop(lambda y, i: i < n - 1, lambda y, i: (y[1:], i + 1), (x, 0))

    rest, steps = interpreted(f, torch.arange(5.0))
    assert (rest.tolist(), int(steps)) == ([4.0], 4)
    assert entry_of(f, torch.arange(5.0)).program.entry.body.outputs[0].type.shape[0] != "n0"


def test_a_carried_array_learns_its_element_type() -> None:
    def f(n):
        def step(i, array):
            return i + 1, array.write(i, i * 2)

        return while_loop(lambda i, a: i < n, step, (0, TensorArray(4)))[1].stack()

    assert_agrees(f, 4)


def test_scans_take_nested_sequences_arrays_and_go_backwards() -> None:
    def f(x):
        def step(carry, element):
            a, b = element["a"], element["b"]
            return carry + a, (carry * b, {"sum": a + b})

        forward = scan(step, torch.tensor(0.0), {"a": x, "b": x * 2})
        backward = scan(step, torch.tensor(0.0), {"a": x, "b": x * 2}, reverse=True)
        array = TensorArray.unstack(x)
        folded = foldl(lambda c, e: c * 2 + e, array, 0.0)
        return forward, backward, folded, foldr(lambda c, e: c * 2 + e, x, 0.0)

    assert_agrees(f, x3)


def test_map_fn_is_one_for_each_and_gives_arrays_for_ragged_results() -> None:
    entry = assert_agrees(lambda x: map_fn(lambda e: (e * 2, e > 0), x), x3)
    assert operations(entry).count("ForEach") == 1

    def ragged(n):
        array = map_fn(lambda k: torch.ones(k), n)
        return array.read(0).sum() + array.read(1).sum()

    assert_agrees(ragged, torch.tensor([2, 3]))


def test_recursion_in_all_its_forms() -> None:
    @function
    def ackermann(m, n):
        return cond(
            m == 0,
            lambda: n + 1,
            lambda: cond(
                n == 0, lambda: ackermann(m - 1, 1), lambda: ackermann(m - 1, ackermann(m, n - 1))
            ),
        )

    @function
    def is_even(n):
        return cond(n == 0, lambda: True, lambda: is_odd(n - 1))

    @function
    def is_odd(n):
        return cond(n == 0, lambda: False, lambda: is_even(n - 1))

    @function
    def without_branch(n, x):
        return with_branch(n - 1, x * 2)

    @function
    def with_branch(n, x):
        return cond(n <= 0, lambda: x, lambda: without_branch(n, x + 1))

    @function
    def loop_of_calls(n):
        def step(i, total):
            return i + 1, total + loop_of_calls(i)

        return while_loop(lambda i, t: i < n, step, (0, 1))[1]

    assert_agrees(ackermann, 2, 1)
    entry = assert_agrees(is_even, 7)
    assert [f.name for f in entry.program.functions] == ["is_even", "is_odd"]
    assert_agrees(without_branch, 3, x3)
    assert_agrees(loop_of_calls, 4)


def test_a_function_is_traced_once_per_signature() -> None:
    @function
    def double(x):
        return x * 2

    def f(x, n):
        return double(x) + double(x + 1), double(n), double(double(n))

    entry = assert_agrees(f, x3, 2)
    assert [g.name for g in entry.program.functions] == ["f", "double", "double_1"]
    assert operations(entry).count("Call") == 5


def test_captured_tensors_are_bound_in_the_callee() -> None:
    weight = torch.ones(3)

    @function
    def scale(x, w, mode="plain"):
        return x * w if mode == "plain" else x

    entry = assert_agrees(lambda x: scale(x, weight) + scale(x, weight, mode="other"), x3)
    names = [len(g.body.inputs) for g in entry.program.functions]
    assert names == [1, 1, 1]


def test_symbols_pass_through_calls() -> None:
    @function
    def double(x):
        return x * 2

    def f(x):
        return double(x) + x / x.shape[0]

    entry = assert_agrees(f, x3)
    assert entry.program.entry.body.outputs[0].type.shape == ("n0",)


def test_recursion_without_a_base_case_is_refused() -> None:
    @function
    def endless(n):
        return endless(n + 1)

    with pytest.raises(RecursionLimitError, match="endless: recursion without a base case") as info:
        entry_of(endless, 1)
    assert "Return without the recursive call in one branch of an `if`" in str(info.value)


def test_recursion_that_changes_types_at_every_call_is_refused() -> None:
    @function
    def growing(x):
        return cond(x.sum() > 100, lambda: 0.0, lambda: growing(torch.cat([x, torch.ones(1)])))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PenstockWarning)
        with pytest.raises(RecursionLimitError, match="argument types change at every"):
            entry_of(growing, x3)


def test_branches_of_different_types_are_refused_with_paths() -> None:
    with pytest.raises(BranchTypeError) as info:
        entry_of(lambda x: cond(x.sum() > 0, lambda: {"h": x}, lambda: {"h": x[:2]}), x3)
    text = str(info.value)
    assert text.startswith("cond: all branches must return the same types.\n  at ")
    assert "test_control_flow_tracing.py" in text
    assert "  false_fn  result['h']   float32[2]\n  true_fn   result['h']   float32[3]\n" in text
    assert text.endswith("Make true_fn return float32[2] for result['h'], or change false_fn.")
    with pytest.raises(BranchTypeError, match=r"branch 1 +\(float32\[3\], float32\[3\]\)"):
        entry_of(lambda x, i: switch(i, [lambda: x, lambda: (x, x)]), x3, 0)
    with pytest.raises(BranchTypeError, match=r"int64\[\]"):
        entry_of(lambda x: cond(x.sum() > 0, lambda: 1, lambda: 1.5), x3)


def test_a_loop_that_changes_its_types_is_refused_with_paths() -> None:
    def f(x):
        return while_loop(
            lambda i, state: i < 3,
            lambda i, state: (i + 1, {"hidden": torch.cat([state["hidden"], x])}),
            (0, {"hidden": x * 2}),
        )

    with pytest.raises(LoopTypeError) as info:
        entry_of(f, x3)
    lines = str(info.value).splitlines()
    assert lines[0] == "while_loop: body_fn must return the same types it receives."
    assert lines[2:] == [
        "  carried input   state['hidden']   float32[3]",
        "  returned value  state['hidden']   float32[6]",
        "Make body_fn return float32[3] for state['hidden'], or change the initial value.",
    ]
    with pytest.raises(LoopTypeError, match=r"carried input +\(int64\[\], int64\[\]\)"):
        entry_of(lambda n: while_loop(lambda a, b: a < n, lambda a, b: a, (0, 1)), 3)
    with pytest.raises(LoopTypeError, match="scan: combine_fn must return the same types"):
        entry_of(lambda x: scan(lambda c, e: (c > 0, e), 0.0, x), x3)


def test_an_array_of_unknown_elements_cannot_be_read() -> None:
    with pytest.raises(StructureError, match=r"TensorArray\(size, like=tensor\)"):
        entry_of(lambda n: TensorArray(n).read(0), 3)


def test_a_traced_value_cannot_leave_its_branch_or_its_caller() -> None:
    def leak(x):
        kept = []
        cond(x.sum() > 0, lambda: kept.append(x * 2) or x, lambda: x)
        return kept[0]

    with pytest.raises(TracedValueError, match="used outside it"):
        entry_of(function(leak, autograph=False), x3)

    def closes_over(x):
        y = x * 2
        inner = function(lambda z: z + y)
        return inner(x)

    with pytest.raises(TracedValueError, match="Pass the value as an argument"):
        entry_of(closes_over, x3)


def test_a_tensor_array_cannot_leave_the_program() -> None:
    with pytest.raises(TracedValueError, match=r"Return array.stack\(\)"):
        entry_of(lambda x: TensorArray.unstack(x), x3)


def test_random_sites_are_numbered_within_their_scope() -> None:
    def f(x):
        a = torch.rand(2)
        b = cond(x.sum() > 0, lambda: torch.rand(2) + torch.rand(2), lambda: torch.rand(2))
        return a + b + torch.rand(2)

    entry = entry_of(f, x3)
    keys = [
        n.site for n in entry.program.entry.body.walk() if type(n.operation).__name__ == "RandomKey"
    ]
    assert keys == [(0,), (0,), (0,), (1,), (2,)]
