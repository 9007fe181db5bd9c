from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from penstock.api.control_flow import cond, switch, while_loop
from penstock.api.eager import is_eager, set_eager
from penstock.api.function import function
from penstock.api.sequences import map_fn
from penstock.capture.active import tracing
from penstock.errors import ArgumentError, IndexRangeError, LoopTypeError, PredicateError


class Position(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclass(frozen=True)
class Decoder:
    hidden: torch.Tensor
    steps: torch.Tensor


def message(error) -> list[str]:
    """The lines of an error text, with the user's line reduced to the function it names."""
    lines = str(error.value).splitlines()
    where = [number for number, line in enumerate(lines) if line.startswith("  at ")]
    for number in where:
        assert __file__.endswith(lines[number].split(":")[0].removeprefix("  at "))
        lines[number] = "  in " + lines[number].split(", in ")[1]
    return lines


@pytest.mark.parametrize("pred", [True, 1, 2.5, torch.tensor(True), torch.tensor([3])])
def test_cond_takes_the_true_branch_for_everything_that_is_true(pred):
    assert cond(pred, lambda: 1, lambda: 2).equal(torch.tensor(1))


@pytest.mark.parametrize("pred", [False, 0, 0.0, torch.tensor(False), torch.tensor([[0.0]])])
def test_cond_takes_the_false_branch_for_everything_that_is_false(pred):
    assert cond(pred, lambda: 1, lambda: 2).equal(torch.tensor(2))


def test_numbers_become_tensors_on_the_way_in_and_out():
    seen = []

    def branch(whole, flag, real):
        seen.extend([whole.dtype, flag.dtype, real.dtype])
        return {"one": 1, "pair": (True, 2.0)}

    result = cond(True, branch, branch, (1, False, 0.5))
    assert seen == [torch.int64, torch.bool, torch.get_default_dtype()]
    assert result["one"].dtype == torch.int64
    assert result["pair"][0].dtype == torch.bool
    assert result["pair"][1].dtype == torch.get_default_dtype()


def test_an_operand_that_is_not_a_tuple_is_the_one_argument():
    position = Position(torch.tensor(1.0), torch.tensor(2.0))
    assert cond(True, lambda p: p.x + p.y, lambda p: p.x, position) == 3


def test_static_values_pass_through_unchanged():
    assert cond(True, lambda mode, nothing: (mode, nothing), None, ("sum", None)) == ("sum", None)


def test_a_predicate_that_is_nan_is_an_error():
    with pytest.raises(PredicateError) as error:
        cond(torch.tensor(float("nan")), lambda: 1, lambda: 2)
    assert message(error) == [
        "cond: pred is NaN, which is neither true nor false.",
        "  in test_a_predicate_that_is_nan_is_an_error",
        "  predicate  nan",
        "  expected   a bool, or a number that is not NaN",
        "Find where the NaN comes from, or compare: a comparison with NaN is False.",
    ]


def test_a_predicate_with_many_elements_is_an_error():
    with pytest.raises(PredicateError) as error:
        cond(torch.zeros(2, 3), lambda: 1, lambda: 2)
    assert message(error) == [
        "cond: pred must be one value that is true or false.",
        "  in test_a_predicate_with_many_elements_is_an_error",
        "  predicate  float32[2, 3]",
        "  expected   bool[], or a Python bool or number",
        "Reduce it to one element first, e.g. with .all() or .any().",
    ]


def test_a_predicate_of_another_kind_is_an_error():
    with pytest.raises(PredicateError, match="predicate  str"):
        cond("yes", lambda: 1, lambda: 2)


def test_an_operand_that_cannot_be_a_value_is_refused():
    with pytest.raises(ArgumentError) as error:
        cond(True, lambda x: x, lambda x: x, ({"tree": object()},))
    assert message(error) == [
        "cond: operands cannot hold this type of value.",
        "  in test_an_operand_that_cannot_be_a_value_is_refused",
        "  value    operands[0]['tree']   object",
        "  allowed  tensors, numbers, TensorArrays, None, strings, enums and dict, tuple, list, "
        "NamedTuple or dataclass of these",
        "Pass or return its tensors instead; other objects can be closed over.",
    ]


def test_switch_runs_the_branch_with_the_given_number():
    branches = [lambda x: x + 1, lambda x: x * 10, lambda x: -x]
    outputs = [int(switch(torch.tensor(i), branches, (7,))) for i in range(3)]
    assert outputs == [8, 70, -7]


@pytest.mark.parametrize("index", [-1, 2])
def test_a_switch_index_out_of_range_is_an_error(index):
    with pytest.raises(IndexRangeError) as error:
        switch(torch.tensor(index), [lambda: 1, lambda: 2])
    assert message(error) == [
        "switch: index out of range.",
        "  in test_a_switch_index_out_of_range_is_an_error",
        f"  index     {index}",
        "  branches  2",
        "Use an index from 0 to 1, or clamp it to get a default branch.",
    ]


@pytest.mark.parametrize(
    ("index", "shown"),
    [(torch.tensor(1.0), "float32[]"), (torch.tensor([0, 1]), "int64[2]"), (True, "bool")],
)
def test_a_switch_index_that_is_not_one_whole_number_is_an_error(index, shown):
    with pytest.raises(PredicateError) as error:
        switch(index, [lambda: 1, lambda: 2])
    assert message(error) == [
        "switch: index must be one whole number.",
        "  in test_a_switch_index_that_is_not_one_whole_number_is_an_error",
        f"  index     {shown}",
        "  expected  an int or int64[]",
        "Convert it first, e.g. with .to(torch.int64).",
    ]


def test_a_switch_without_branches_is_an_error():
    with pytest.raises(ArgumentError) as error:
        switch(0, [])
    assert message(error) == [
        "switch: there must be at least one branch.",
        "  in test_a_switch_without_branches_is_an_error",
        "  branches  0",
        "  expected  1 or more",
        "Pass the functions to choose from as a list.",
    ]


def test_a_tuple_is_spread_and_comes_back_as_a_tuple():
    result = while_loop(lambda i, x: i < 3, lambda i, x: [i + 1, x * 2], (0, torch.tensor(1.0)))
    assert type(result) is tuple
    assert result[1] == 8


def test_a_list_is_spread_and_comes_back_as_a_list():
    assert while_loop(lambda i: i < 3, lambda i: (i + 1,), [0]) == [torch.tensor(3)]


def test_a_dict_is_one_argument_and_the_order_of_its_keys_does_not_matter():
    def body(state):
        return {"x": state["x"] * 2, "i": state["i"] + 1}

    result = while_loop(lambda s: s["i"] < 3, body, {"i": 0, "x": torch.tensor(1.0)})
    assert list(result) == ["i", "x"]
    assert result["x"] == 8


def test_a_named_tuple_is_one_argument():
    start = Position(torch.tensor(0.0), torch.tensor(1.0))
    result = while_loop(lambda p: p.x < 2, lambda p: Position(p.x + 1, p.y * 3), start)
    assert isinstance(result, Position)
    assert result.y == 9


def test_a_dataclass_is_one_argument():
    start = Decoder(torch.ones(2), torch.tensor(0))
    result = while_loop(lambda d: d.steps < 2, lambda d: Decoder(d.hidden * 2, d.steps + 1), start)
    assert isinstance(result, Decoder)
    assert result.hidden.tolist() == [4.0, 4.0]


def test_a_loop_whose_condition_is_false_at_once_returns_its_inputs():
    assert while_loop(lambda i: i < 0, lambda i: (i + 1,), (5,)) == (torch.tensor(5),)


@pytest.mark.parametrize("limit", [0, 3, torch.tensor(3)])
def test_maximum_iterations_ends_the_loop(limit):
    (count,) = while_loop(lambda i: True, lambda i: (i + 1,), (0,), maximum_iterations=limit)
    assert count == int(limit)


def test_a_body_that_changes_a_shape_is_an_error():
    def decode(state):
        return {"hidden": torch.cat([state["hidden"], state["hidden"]])}

    with pytest.raises(LoopTypeError) as error:
        while_loop(lambda state: True, decode, {"hidden": torch.zeros(8)})
    assert message(error) == [
        "while_loop: body_fn must return the same types it receives.",
        "  in test_a_body_that_changes_a_shape_is_an_error",
        "  carried input   state['hidden']   float32[8]",
        "  returned value  state['hidden']   float32[16]",
        "Make body_fn return float32[8] for state['hidden'], or change the initial value.",
    ]


def test_a_body_that_changes_a_dtype_is_an_error_with_the_parameters_name():
    with pytest.raises(LoopTypeError) as error:
        while_loop(lambda i, total: True, lambda i, total: (i + 1, total / 2), (0, 0))
    assert message(error)[2:4] == [
        "  carried input   total   int64[]",
        "  returned value  total   float32[]",
    ]


def test_a_body_with_any_number_of_parameters_is_named_by_position():
    with pytest.raises(LoopTypeError, match=r"returned value  rest\[1\]   bool\[\]"):
        while_loop(lambda *s: True, lambda *rest: (rest[0], True), (0, 0))


def test_a_body_that_changes_the_structure_is_an_error():
    with pytest.raises(LoopTypeError) as error:
        while_loop(lambda i, x: True, lambda i, x: i + 1, (0, torch.ones(3)))
    assert message(error) == [
        "while_loop: body_fn must return the same types it receives.",
        "  in test_a_body_that_changes_the_structure_is_an_error",
        "  carried input   (int64[], float32[3])",
        "  returned value  int64[]",
        "Make body_fn return (int64[], float32[3]), or change the initial value.",
    ]


def test_a_body_that_nests_deeper_than_its_input_is_an_error():
    with pytest.raises(LoopTypeError, match=r"returned value  \(\(int64\[\],\),\)"):
        while_loop(lambda i: True, lambda i: ((i,),), (0,))


@pytest.mark.parametrize(
    ("name", "bound", "least"), [("maximum_iterations", -1, 0), ("parallel_iterations", 0, 1)]
)
def test_bounds_that_are_too_small_are_errors(name, bound, least):
    with pytest.raises(ArgumentError) as error:
        while_loop(lambda i: True, lambda i: (i,), (0,), **{name: bound})
    width = len(name)
    assert message(error) == [
        f"while_loop: {name} is too small.",
        "  in test_bounds_that_are_too_small_are_errors",
        f"  {name}  {bound}",
        f"  {'least':<{width}}  {least}",
        f"Pass {least} or more, or None for no bound.",
    ]


def test_the_condition_names_itself_when_it_is_nan():
    with pytest.raises(PredicateError, match="while_loop: what cond_fn returns is NaN"):
        while_loop(lambda x: x, lambda x: (x,), (float("nan"),))


def test_gradients_flow_through_the_branch_that_was_taken_only():
    x = torch.tensor(0.0, requires_grad=True)
    cond(x > 0, torch.sqrt, lambda x: 3 * x, (x,)).backward()
    assert x.grad == 3


def test_set_eager_is_a_function_and_a_context_manager():
    with set_eager(True):
        assert is_eager()
        set_eager(False)
        assert not is_eager()
    set_eager(True)
    assert is_eager()
    set_eager(False)
    assert not is_eager()


class RecordingTracer:
    """Answers every combinator with its name and arguments."""

    def __getattr__(self, name):
        return lambda *arguments: (name, *arguments)


def test_an_active_tracer_gets_every_call():
    tracer = RecordingTracer()
    with tracing(tracer):
        assert cond(1, 2, 3, [4]) == ("cond", 1, 2, 3, (4,))
        assert switch(1, [2], 3) == ("switch", 1, [2], (3,))
        assert while_loop(1, 2, 3, maximum_iterations=4) == ("while_loop", 1, 2, 3, 4, None)


def test_a_tensor_of_fixed_length_meets_a_sequence_in_a_branch() -> None:
    @function
    def f(xs):
        doubled = map_fn(lambda x: x[:2] * 2, xs)
        return cond(xs.shape[0] > 1, lambda: doubled, lambda: xs.new_zeros(0, 2))

    rows = [torch.ones(n, 3) for n in (0, 1, 2, 4)]
    assert [len(row) for row in f.map(rows)] == [0, 0, 2, 4]
    assert len(f(rows[0])) == 0
