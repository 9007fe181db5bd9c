from __future__ import annotations

import pytest
import torch
from torch import nn

from penstock.api.control_flow import cond, while_loop
from penstock.api.function import function
from penstock.errors import MutationError, PenstockError, PredicateError, TracedValueError
from tests.unit.capture.tracing import assert_agrees, entry_of

x3 = torch.tensor([1.0, -2.0, 3.0])

VALUES_ASKED_FOR = {
    "if": (lambda x: 1 if x.sum() > 0 else 2, "ps.cond instead of `if`"),
    "while": (lambda x: [0 for _ in iter(lambda: bool(x.sum() > 0), False)], "ps.while_loop"),
    "int": (lambda x: int(x.sum()), "Keep it a tensor"),
    "range": (lambda x: list(range(x.sum().long())), "instead of a loop over range"),
    "list index": (lambda x: [1, 2][x.argmax()], "ps.TensorArray instead of a list"),
    "float": (lambda x: float(x.sum()), "use torch functions instead of math"),
    "item": (lambda x: x.sum().item(), "`if`, `while` and ps.cond can decide on it"),
    "tolist": (lambda x: x.tolist(), "ps.scan or ps.map_fn"),
    "numpy": (lambda x: x.numpy(), "instead of numpy"),
    "in": (lambda x: 3 in x, r"\(x == value\).any\(\)"),
}


@pytest.mark.parametrize("name", VALUES_ASKED_FOR)
def test_a_traced_value_where_python_needs_one_names_the_way_out(name) -> None:
    fn, way_out = VALUES_ASKED_FOR[name]
    with pytest.raises(TracedValueError, match=way_out) as info:
        entry_of(function(fn, autograph=False), x3)
    lines = str(info.value).splitlines()
    assert lines[0].startswith("A traced value has no contents yet: ")
    assert "test_refusals.py" in lines[1]
    assert lines[2].startswith("  value   ")


def test_a_captured_tensor_is_not_frozen_into_the_program() -> None:
    threshold = torch.tensor(2.0)
    with pytest.raises(TracedValueError, match="would freeze the contents of a captured tensor"):
        entry_of(function(lambda x: x if threshold > 1 else -x, autograph=False), x3)
    with pytest.raises(TracedValueError, match="captured tensor"):
        entry_of(lambda x: x * threshold.item(), x3)


def test_constants_made_in_the_program_have_contents() -> None:
    assert_agrees(lambda x: x * torch.tensor(2.0).item() + sum(torch.arange(3).tolist()), x3)


def test_changes_in_place_of_own_tensors_are_functionalised() -> None:
    def f(x):
        y = x * 2
        y += 1
        y.mul_(3)
        y[0] = 7.0
        y[1:] = x[1:]
        z = torch.zeros(3)
        z[torch.tensor(1)] = x[0]
        z.add_(y).clamp_(min=0)
        w = torch.empty(3)
        w.fill_(2).copy_(x)
        w.zero_()
        v = nn.functional.relu(x + 1, inplace=True)
        return y, z, w, v

    assert_agrees(f, x3)


def test_a_traced_position_can_be_assigned_to() -> None:
    def f(x, i):
        y = x * 1
        y[i] = 5.0
        return y

    assert_agrees(f, x3, 2)


MUTATIONS = {
    "its inputs": lambda x: x.add_(1),
    "a tensor that shares its memory": lambda x: _change_a_view(x),
    "a tensor of the enclosing function": lambda x: _change_outer(x),
}


def _change_a_view(x):
    y = x * 2
    view = y.view(-1)
    y += 1
    return view


def _change_outer(x):
    y = x * 2
    return cond(x.sum() > 0, lambda: y.add_(1), lambda: y)


@pytest.mark.parametrize("owner", MUTATIONS)
def test_changes_in_place_of_other_tensors_are_refused(owner) -> None:
    with pytest.raises(MutationError, match=f"must not change {owner}") as info:
        entry_of(MUTATIONS[owner], x3)
    assert "test_refusals.py" in str(info.value)
    assert "or clone the tensor first" in str(info.value)


def test_captured_tensors_and_buffers_are_not_changed() -> None:
    total = torch.zeros(3)
    with pytest.raises(MutationError, match="a captured tensor"):
        entry_of(lambda x: total.add_(x), x3)
    with pytest.raises(MutationError, match="a captured tensor"):
        entry_of(lambda x: torch.add(x, x, out=total), x3)
    norm = nn.BatchNorm1d(3)
    with pytest.raises(MutationError, match=r"(?s)a captured tensor.*BatchNorm in training mode"):
        entry_of(lambda x: norm(x.expand(2, 3)), x3)
    assert norm.num_batches_tracked == 0


def test_predicates_of_many_values_are_refused() -> None:
    with pytest.raises(PredicateError, match="cond: pred must be one value"):
        entry_of(lambda x: cond(x > 0, lambda: x, lambda: x), x3)
    with pytest.raises(PredicateError, match="what cond_fn returns must be one value"):
        entry_of(lambda x: while_loop(lambda y: y > 0, lambda y: y, x), x3)


def test_exceptions_of_user_code_surface_with_a_note() -> None:
    def f(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as info:
        entry_of(f, x3)
    assert any(note.startswith("while tracing f at ") for note in info.value.__notes__)


def test_shape_errors_are_those_of_torch() -> None:
    with pytest.raises(RuntimeError, match=r"broadcast|size of tensor"):
        entry_of(lambda x: x + torch.ones(4), x3)


def test_a_value_that_escapes_its_trace_says_so() -> None:
    kept = []
    entry_of(lambda x: kept.append(x * 2) or x, x3)
    with pytest.raises(PenstockError, match="after its program had been traced"):
        kept[0] + 1
