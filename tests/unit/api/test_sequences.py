import pytest
import torch

from penstock.api.control_flow import cond, switch, while_loop
from penstock.api.sequences import foldl, foldr, map_fn, scan
from penstock.capture.active import tracing
from penstock.capture.tensor_array import TensorArray
from penstock.errors import LoopTypeError, StructureError
from tests.unit.api.test_control_flow import RecordingTracer


def lines(error) -> list[str]:
    """The lines of an error text without the line that says where."""
    return [line for line in str(error.value).splitlines() if not line.startswith("  at ")]


def test_scan_returns_the_last_state_and_all_results():
    carry, ys = scan(lambda c, x: (c + x, {"before": c}), 0, torch.tensor([1, 2, 3]))
    assert carry == 6
    assert ys["before"].tolist() == [0, 1, 3]


def test_scan_in_reverse_keeps_the_results_in_the_order_of_the_sequence():
    carry, ys = scan(lambda c, x: (10 * c + x, c), 0, torch.tensor([1, 2, 3]), reverse=True)
    assert carry == 321
    assert ys.tolist() == [32, 3, 0]


def test_scan_takes_nested_sequences_apart_together():
    xs = {"a": torch.arange(6.0).view(3, 2), "b": torch.tensor([1, 0, 1])}
    carry, ys = scan(lambda c, x: (c + x["a"] * x["b"], x["a"].sum()), torch.zeros(2), xs)
    assert carry.tolist() == [4.0, 6.0]
    assert ys.tolist() == [1.0, 5.0, 9.0]


def test_scan_of_an_empty_sequence_gives_results_of_the_right_type():
    weight = torch.ones(4, 2, requires_grad=True)
    xs = torch.zeros(0, 4)
    carry, ys = scan(lambda c, x: (c + x @ weight, (c > 0, 1)), torch.ones(2), xs)
    assert carry.tolist() == [1.0, 1.0]
    assert ys[0].shape == (0, 2)
    assert ys[0].dtype == torch.bool
    assert ys[1].shape == (0,)
    assert ys[1].dtype == torch.int64


def test_an_empty_sequence_finds_its_types_through_branches_and_loops():
    def element(x):
        x = cond(x > 0, lambda: x * 2, lambda: -x)
        x = switch(x.to(torch.int64), [lambda: x, lambda: x + 1])
        return while_loop(lambda y: y < 1, lambda y: y * 2, x)

    assert map_fn(element, torch.zeros(0, dtype=torch.float64)).dtype == torch.float64


def test_an_empty_sequence_finds_its_types_through_recursion():
    def count(n):
        return cond(n > 0, lambda: count(n - 1) + count(n - 2), lambda: torch.zeros(3))

    assert map_fn(count, torch.zeros(0, dtype=torch.int64)).shape == (0, 3)


def test_an_empty_sequence_whose_function_needs_values_is_an_error():
    with pytest.raises(StructureError) as error:
        map_fn(lambda x: torch.zeros(int(x)), torch.zeros(0))
    text = lines(error)
    assert text[0] == "map_fn: the element type of an empty result cannot be found."
    assert text[1] == "  length  0"
    assert text[2].startswith("  cause   the function needs values: ")
    assert text[3] == "Branch around the empty sequence with cond."


def test_an_empty_sequence_without_a_base_case_is_an_error():
    def endless(x):
        return cond(x > 0, lambda: endless(x), lambda: endless(x))

    with pytest.raises(StructureError, match="every branch leads back to itself"):
        map_fn(endless, torch.zeros(0))


def test_a_combine_function_that_does_not_return_a_pair_is_an_error():
    with pytest.raises(LoopTypeError) as error:
        scan(lambda c, x: c + x, 0, torch.tensor([1]))
    assert lines(error) == [
        "scan: combine_fn must return a pair.",
        "  expected        (next carry, result of this element)",
        "  returned value  int64[]",
        "Return (carry, y) from combine_fn; y may be an empty tuple.",
    ]


def test_a_scan_that_changes_its_state_is_an_error():
    with pytest.raises(LoopTypeError) as error:
        scan(lambda carry, x: (carry + x, ()), 0, torch.tensor([1.0]))
    assert lines(error) == [
        "scan: combine_fn must return the same types it receives.",
        "  carried input   carry   int64[]",
        "  returned value  carry   float32[]",
        "Make combine_fn return int64[] for carry, or change the initial value.",
    ]


def test_a_scan_whose_results_differ_in_type_is_an_error():
    with pytest.raises(StructureError) as error:
        scan(lambda c, x: (c + 1, torch.ones(int(c) + 1)), 0, torch.tensor([1, 1]))
    assert lines(error) == [
        "scan: the function must return the same types for every element.",
        "  element 0  result   float32[1]",
        "  element 1  result   float32[2]",
        "Make the function return float32[1] for every element.",
    ]


def test_results_of_different_structures_are_an_error():
    with pytest.raises(StructureError) as error:
        map_fn(lambda x: (x, x) if x > 1 else x, torch.tensor([1, 2]))
    assert lines(error)[1:3] == ["  element 0  int64[]", "  element 1  (int64[], int64[])"]


def test_foldl_starts_at_the_first_element_and_foldr_at_the_last():
    xs = torch.tensor([1, 2, 3])
    assert foldl(lambda acc, x: 10 * acc + x, xs, 0) == 123
    assert foldr(lambda acc, x: 10 * acc + x, xs, 0) == 321


def test_a_fold_over_nothing_is_its_initial_value():
    assert foldl(lambda acc, x: acc + x, torch.zeros(0), 2.5) == 2.5


def test_a_fold_that_changes_its_type_is_an_error():
    with pytest.raises(LoopTypeError, match="foldr: fn must return the same types it receives"):
        foldr(lambda acc, x: acc + x, torch.ones(2), torch.zeros(3, dtype=torch.int64))


def test_map_fn_stacks_every_leaf_of_the_results():
    result = map_fn(lambda x: {"square": x * x, "big": x > 2}, torch.tensor([1, 2, 3]))
    assert result["square"].tolist() == [1, 4, 9]
    assert result["big"].tolist() == [False, False, True]


def test_map_fn_gives_a_tensor_array_where_shapes_differ():
    result = map_fn(lambda n: (torch.ones(int(n)), n), torch.tensor([0, 2]))
    assert isinstance(result[0], TensorArray)
    assert [tuple(result[0].read(i).shape) for i in range(2)] == [(0,), (2,)]
    assert result[1].tolist() == [0, 2]


def test_map_fn_takes_a_tensor_array_apart():
    array = TensorArray(2).write(0, torch.ones(1)).write(1, torch.ones(3))
    assert map_fn(torch.sum, array).tolist() == [1.0, 3.0]


def test_map_fn_does_not_mix_dtypes():
    with pytest.raises(StructureError) as error:
        map_fn(lambda x: x if x > 1 else x * 1.0, torch.tensor([1, 2]))
    assert lines(error)[1:3] == [
        "  element 0  result   float32[]",
        "  element 1  result   int64[]",
    ]


def test_sequences_of_different_lengths_are_an_error():
    with pytest.raises(StructureError) as error:
        map_fn(lambda x: x["a"], {"a": torch.ones(2), "b": torch.ones(3, 4)})
    assert lines(error) == [
        "map_fn: xs must be tensors with one length along dimension 0.",
        "  xs['a']  float32[2]",
        "  xs['b']  float32[3, 4]",
        "Pass tensors of at least one dimension whose first dimensions are equal.",
    ]


def test_a_number_is_not_a_sequence():
    with pytest.raises(StructureError, match=r"xs  int64\[\]"):
        foldl(lambda acc, x: acc, 3, 0)


def test_an_empty_container_is_not_a_sequence():
    with pytest.raises(StructureError, match="xs  no tensors"):
        foldl(lambda acc, x: acc, (), 0)


def test_an_active_tracer_gets_every_call():
    with tracing(RecordingTracer()):
        assert scan(1, 2, 3, reverse=True) == ("scan", 1, 2, 3, True)
        assert foldl(1, 2, 3) == ("foldl", 1, 2, 3)
        assert foldr(1, 2, 3) == ("foldr", 1, 2, 3)
        assert map_fn(1, 2) == ("map_fn", 1, 2)
        assert TensorArray(3, like=1) == ("tensor_array", 3, False, 1)
        assert TensorArray.unstack(4) == ("unstack", 4)
