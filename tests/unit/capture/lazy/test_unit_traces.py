"""Calls as units: what they compute for many rows, what is refused, and that nothing is stale."""

from __future__ import annotations

import copy
import pickle
import weakref
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from penstock.capture.lazy.guarded_values import original_of
from penstock.capture.lazy.mode import RecordingMode
from penstock.capture.lazy.module_changes import changes
from penstock.capture.lazy.patches import mark_unit, patched
from penstock.capture.lazy.unit_traces import MODULE_CALL, MOST_CALLS, MOST_VALUES, traces_of
from penstock.capture.lazy.units import Refusal, Unit, describe_call
from penstock.ir.graph import Home
from penstock.run.blocks import RunnableBlock
from penstock.run.random_bits import dropout

SCALE = 2.0
ROWS = 5


def find(original, owner, args, kwargs=None, key="key"):
    changes.add()
    kwargs = kwargs or {}
    return traces_of(original, owner).find(key, lambda: describe_call(args, kwargs))


def unit_of(module, *args, **kwargs) -> Unit:
    found = find(MODULE_CALL, module, args, kwargs)
    assert isinstance(found, Unit), found.reason
    return found


def refusal_of(module, *args) -> str:
    found = find(MODULE_CALL, module, args)
    assert isinstance(found, Refusal)
    return found.reason


def run_rows(unit: Unit, rows, keys=()):
    """What user code gets for each row: `rows` are lists of tensor arguments."""
    node = unit.node
    block = RunnableBlock(node, unit.autocast)
    columns = [torch.stack(column) for column in zip(*rows, strict=True)]
    given = [columns[number] for number in unit.block.parameters]
    count = sum(wire.home is Home.UNIFORM for wire in node.inputs)
    made = block.form(())(len(rows), *given, *unit.tensors[:count], *keys)
    return [
        unit.rebuild([output[number] for output in made], row) for number, row in enumerate(rows)
    ]


def leaves(value):
    return torch.utils._pytree.tree_leaves(value)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(3, 3)
        self.scale = 2.0
        self.uses_tanh = True

    def mix(self, x, state):
        h, c = state
        c = torch.sigmoid(self.gate(x)) * c + h
        return (torch.tanh(c) if self.uses_tanh else c) * self.scale, c

    def forward(self, x, state):
        h, c = self.mix(x, state)
        return {"h": h, "c": c, "depth": 1}


MODULES = {
    "linear": (nn.Linear(3, 4), [(3,)], ()),
    "layer norm": (nn.LayerNorm(3), [(3,)], ()),
    "batch norm, evaluating": (nn.BatchNorm1d(3).eval(), [(2, 3)], ()),
    "sequential": (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.ReLU(inplace=True)), [(3,)], ()),
    "gru cell": (nn.GRUCell(3, 4), [(3,), (4,)], ()),
    "attention": (nn.MultiheadAttention(4, 2), [(5, 4)] * 3, ()),
    "conv": (nn.Conv1d(2, 3, 2), [(2, 6)], ()),
    "bilinear": (nn.Bilinear(3, 2, 4), [(3,), (2,)], ()),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_as_a_unit_gives_what_the_module_gives(name):
    module, shapes, _ = MODULES[name]
    rows = [[torch.randn(shape) for shape in shapes] for _ in range(ROWS)]
    unit = unit_of(module, *rows[0])
    for row, found in zip(rows, run_rows(unit, rows), strict=True):
        torch.testing.assert_close(found, module(*row))


def test_embeddings_take_indices():
    module = nn.Embedding(7, 3)
    rows = [[torch.tensor(k)] for k in (1, 4, 4)]
    for row, found in zip(rows, run_rows(unit_of(module, *rows[0]), rows), strict=True):
        torch.testing.assert_close(found, module(*row))


def test_nested_arguments_and_results_keep_their_structure():
    module = nn.LSTMCell(3, 4)
    rows = [[torch.randn(3), torch.randn(4), torch.randn(4)] for _ in range(ROWS)]
    x, h, c = rows[0]
    unit = unit_of(module, x, (h, c))
    for (x, h, c), found in zip(rows, run_rows(unit, rows), strict=True):
        torch.testing.assert_close(found, module(x, (h, c)))


def test_a_module_of_the_user_with_static_results():
    module = Gated()
    rows = [[torch.randn(3), torch.randn(3), torch.randn(3)] for _ in range(ROWS)]
    x, h, c = rows[0]
    unit = unit_of(module, x, (h, c))
    for (x, h, c), found in zip(rows, run_rows(unit, rows), strict=True):
        torch.testing.assert_close(found, module(x, (h, c)))
        assert found["depth"] == 1
    assert {capture.name for capture in unit.captures} == {"self.gate.weight", "self.gate.bias"}


def test_methods_are_units_of_their_object():
    module = Gated()
    found = find(Gated.mix, module, (torch.ones(3), (torch.ones(3), torch.ones(3))))
    assert isinstance(found, Unit)
    assert found.name == "Gated.mix"


def scaled(x, power: int = 2):
    return (x * SCALE) ** power


def test_numbers_are_part_of_the_unit():
    for power in (1, 3):
        unit = find(scaled, None, (torch.ones(3), power), key=power)
        rows = [[torch.randn(3)] for _ in range(ROWS)]
        for (x,), found in zip(rows, run_rows(unit, rows), strict=True):
            torch.testing.assert_close(found, scaled(x, power))


def test_dropout_counts_its_draws():
    unit = unit_of(nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 6), nn.Dropout(0.25)), torch.ones(6))
    assert unit.draws == 2
    assert unit.block.keys == (0, 1)
    single = unit_of(nn.Dropout(0.5), torch.ones(6))
    keys = torch.tensor([11, 12])
    found = run_rows(single, [[torch.ones(6)], [torch.ones(6)]], [keys])
    for key, row in zip(keys, found, strict=True):
        assert torch.equal(row, dropout(key, torch.ones(6), 0.5))
    assert unit_of(nn.Dropout(0.5).eval(), torch.ones(6)).draws == 0


def test_attention_with_dropout_draws():
    assert unit_of(nn.MultiheadAttention(4, 2, dropout=0.1), *[torch.ones(5, 4)] * 3).draws == 1


def test_an_identity_gives_its_argument_and_computes_nothing():
    unit = unit_of(nn.Identity(), torch.ones(3))
    x = object()
    assert unit.node is None
    assert unit.rebuild((), [x]) is x


def test_outputs_say_whose_memory_they_share():
    unit = unit_of(nn.Flatten(0), torch.ones(2, 3))
    assert unit.outputs[0].view_of == 0
    halves = find(torch_halves, None, (torch.ones(4),))
    assert [output.shares_with for output in halves.outputs] == [None, 0]


def torch_halves(x):
    return torch.chunk(x * 2, 2)


def test_outputs_say_from_where_gradients_flow():
    def function(x, y, z):
        return x * y.detach(), (z > 0), z.argmax()

    found = find(function, None, (torch.ones(3),) * 3)
    assert [set(output.flows_from) for output in found.outputs] == [{0}, set(), set()]
    assert [output.dtype for output in found.outputs] == [torch.float32, torch.bool, torch.int64]


# Refusals


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0
        self.seen: list = []

    def forward(self, x):
        self.count += 1
        return x * 2


class Appending(Counting):
    def forward(self, x):
        self.seen.append(x)
        return x * 2


class Choosing(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Reading(nn.Module):
    def forward(self, x):
        return x * x.sum().item()


class Changing(nn.Module):
    def forward(self, x):
        x += 1
        return x


class ChangingAView(nn.Module):
    def forward(self, x):
        y = x.view(-1)
        y += 1
        return y


class Zeros(nn.Module):
    def forward(self, x):
        return torch.zeros(3), x * 2


class Writing(nn.Module):
    def forward(self, x):
        return x, f"{x}"


class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        total = self.total
        torch.add(total, x, out=total)
        return x * 2


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.BatchNorm1d(3), "change a captured tensor"),
        (nn.Embedding(4, 3, max_norm=1.0), "changes tensors"),
        (nn.RReLU(), "random operation"),
        (Counting(), "writes self.count at"),
        (Appending(), "calls self.seen.append"),
        (Choosing(), "bool()"),
        (Reading(), ".item()"),
        (Changing(), "changes in place its argument"),
        (ChangingAView(), "in place"),
        (Zeros(), "numbers alone"),
        (Buffered(), "in place"),
        (Writing(), "into a string"),
        (nn.Linear(7, 2), "it fails"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_is_not_one_step_is_refused_in_words(module, reason):
    x = torch.tensor([1, 2]) if isinstance(module, nn.Embedding) else torch.ones(2, 3)
    assert reason in refusal_of(module, x)
    assert reason in refusal_of(module, x)


def test_refusals_are_cached():
    module = Choosing()
    refusal_of(module, torch.ones(3))
    traces = traces_of(MODULE_CALL, module)
    misses = traces.misses
    refusal_of(module, torch.ones(3))
    assert traces.misses == misses


class Repeated(nn.Module):
    def forward(self, x, times):
        for _ in range(times):
            x = x.sin()
        return x


def test_what_is_long_is_no_unit_unless_it_is_asked_for():
    module, x = Repeated(), torch.randn(3)
    kept = find(MODULE_CALL, module, (x, 2), key=2)
    found = find(MODULE_CALL, module, (x, MOST_CALLS + 1), key=65)
    assert isinstance(found, Refusal)
    assert (
        found.reason
        == f"is long: {MOST_CALLS + 1} torch calls, and {MOST_CALLS} are the most unasked"
    )
    assert isinstance(find(MODULE_CALL, module, (x, 3), key=3), Refusal)  # not traced any more
    assert find(MODULE_CALL, module, (x, 2), key=2) is kept
    asked = mark_unit(lambda x, times: Repeated.forward(None, x, times))
    assert isinstance(find(original_of(asked), None, (x, MOST_CALLS + 1)), Unit)


def test_a_function_has_units_for_few_values_of_arguments_that_are_no_tensors():
    module, x = Repeated(), torch.randn(3)
    found = [find(MODULE_CALL, module, (x, n), key=n) for n in range(1, MOST_VALUES + 2)]
    assert all(isinstance(unit, Unit) for unit in found[:MOST_VALUES])
    assert found[-1].reason == "has other arguments than tensors, 8 so far"
    assert isinstance(find(MODULE_CALL, module, (torch.randn(4), 1), key="other kinds"), Unit)


def test_objects_and_calls_without_tensors_are_refused():
    given = (torch.ones(3), object())
    assert "an argument is a object" in find(scaled, None, given, key="object").reason
    assert "takes no tensor" in find(scaled, None, (3,), key="number").reason


def test_what_a_marked_function_writes_is_put_back_and_refused():
    @mark_unit
    def writing(x):
        module.last = x
        module.seen.append(x)
        return x * 2

    module = Counting()
    found = find(original_of(writing), None, (torch.ones(3),))
    assert "writes" in found.reason
    assert not hasattr(module, "last")
    assert module.seen == []


def test_containers_that_are_changed_or_handed_back_are_refused():
    @mark_unit
    def adding(xs):
        xs.append(xs[0])
        return xs[0] * 2

    @mark_unit
    def returning(xs):
        return xs

    xs = [torch.ones(3)]
    assert "changes a container" in find(original_of(adding), None, (xs,)).reason
    assert len(xs) == 1
    assert "returns a container" in find(original_of(returning), None, (xs,)).reason


class Recorded(torch.Tensor):
    """Stands for a tensor that a scope records."""


def test_recorded_tensors_outside_are_refused_and_not_kept():
    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = torch.ones(3).as_subclass(Recorded)

        def forward(self, x):
            return x + self.hidden

    module = Keeping()
    assert "recorded tensor" in refusal_of(module, torch.ones(3))
    held = weakref.ref(module.hidden)
    module.hidden = torch.ones(3)
    assert held() is None
    torch.testing.assert_close(value_of(module, torch.ones(3)), torch.full((3,), 2.0))

    @mark_unit
    def marked(x):
        return x + recorded

    recorded = torch.ones(3).as_subclass(Recorded)
    assert "recorded tensor" in find(original_of(marked), None, (torch.ones(3),)).reason


def test_results_that_depend_on_no_argument_have_a_row_for_each_call():
    weight = nn.Parameter(torch.ones(3))

    def function(x):
        return x * 2, weight * 3, weight

    unit = find(function, None, (torch.ones(3),))
    rows = [[torch.randn(3)] for _ in range(ROWS)]
    for (x,), found in zip(rows, run_rows(unit, rows), strict=True):
        torch.testing.assert_close(found, function(x))
        assert found[2] is weight
    assert not unit.has_single_output
    assert unit_of(nn.Linear(3, 3), torch.ones(3)).has_single_output


def test_a_trace_is_not_recorded_itself():
    class Watching(RecordingMode):
        def __init__(self):
            super().__init__(None)
            self.calls = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.calls.append(func)
            return func(*args, **(kwargs or {}))

    def function(x):
        return x + torch.ones(3)

    with torch.device("meta"), Watching() as mode:
        found = find(function, None, (torch.empty(3, device="meta"),))
        torch.ones(3)
    assert isinstance(found, Unit)
    assert found.tensors[0].device.type == "meta"
    assert mode.calls[-1] is torch.ones
    assert mode.calls.count(torch.ones) == 1


# Nothing is stale


def test_changes_between_two_calls_of_one_scope_are_seen():
    class Asking:
        def on_call(self, original, owner, args, kwargs):
            unit = traces_of(original, owner).find("key", lambda: describe_call(args, kwargs))
            found.append(unit)
            return False, None

    found: list = []
    module, x = nn.Sequential(nn.Dropout(0.5)), torch.ones(3)
    with patched(Asking()):
        module(x)
        first = found[0]
        found.clear()
        module(x)
        assert found[0] is first
        module.eval()
        found.clear()
        module(x)
        assert (first.draws, found[0].draws) == (1, 0)
        module[0] = nn.Linear(3, 3)
        found.clear()
        module(x)
        before = found[0].tensors
        module[0].weight = nn.Parameter(torch.zeros(3, 3))
        found.clear()
        module(x)
        assert found[0].tensors[0] is module[0].weight
        assert before[0] is not module[0].weight


def value_of(module, x):
    return run_rows(unit_of(module, x), [[x]])[0]


def test_evaluation_and_training_have_units_of_their_own():
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    x = torch.ones(3)
    training = unit_of(module, x)
    module.eval()
    assert unit_of(module, x).draws == 0
    module.train()
    assert unit_of(module, x) is training


def test_loaded_and_replaced_parameters_are_seen():
    module, other, x = nn.Linear(3, 3), nn.Linear(3, 3), torch.randn(3)
    first = unit_of(module, x)
    module.load_state_dict(other.state_dict())
    torch.testing.assert_close(value_of(module, x), other(x))
    module.weight = nn.Parameter(torch.zeros(3, 3))
    torch.testing.assert_close(value_of(module, x), module.bias)
    assert unit_of(module, x) is not first
    module.to(torch.float64)
    assert value_of(module, x.double()).dtype == torch.float64


def test_replaced_submodules_are_seen():
    module, x = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), torch.randn(3)
    unit_of(module, x)
    module[1] = nn.ReLU()
    torch.testing.assert_close(value_of(module, x), module(x))


def test_changed_attributes_are_seen():
    module, x, state = Gated(), torch.randn(3), (torch.randn(3), torch.randn(3))
    for scale, uses_tanh in ((2.0, True), (3.0, True), (3.0, False), (2.0, True)):
        module.scale, module.uses_tanh = scale, uses_tanh
        (found,) = run_rows(unit_of(module, x, state), [[x, *state]])
        torch.testing.assert_close(found, module(x, state))


def test_changed_globals_cells_and_containers_are_seen():
    global SCALE
    factor, table = 3.0, [1.0, 2.0]

    def function(x):
        return x * SCALE * factor + table[1]

    x = torch.randn(3)

    def check():
        (found,) = run_rows(
            traces_of(function, None).find("key", lambda: describe_call((x,), {})), [[x]]
        )
        torch.testing.assert_close(found, function(x))

    check()
    SCALE = 5.0
    check()
    factor = 4.0
    check()
    table[1] = 7.0
    check()
    SCALE = 2.0


def test_hooks_put_on_later_are_seen():
    module = nn.Sequential(nn.Linear(3, 3))
    unit_of(module, torch.ones(3))
    handle = module[0].register_forward_hook(lambda *_: None)
    assert "hooks" in refusal_of(module, torch.ones(3))
    handle.remove()
    unit_of(module, torch.ones(3))


def test_tied_parameters_that_come_apart_are_seen():
    module, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), torch.randn(3)
    module[1].weight = module[0].weight
    assert len(unit_of(module, x).captures) == 3
    module[1].weight = nn.Parameter(torch.randn(3, 3))
    torch.testing.assert_close(value_of(module, x), module(x))


def test_the_default_dtype_is_seen():
    def function(x):
        return x + torch.zeros(3)

    x = torch.ones(3)
    assert find(function, None, (x,)).outputs[0].dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert find(function, None, (x,)).outputs[0].dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_default_device_is_seen():
    def function(x):
        return x + torch.ones(3, 1), torch.zeros(2) * x.sum()

    x = torch.empty(3, device="meta")
    with torch.device("meta"):
        made = find(function, None, (x,))
    assert {tensor.device.type for tensor in made.tensors} == {"meta"}
    traces = traces_of(function, None)
    assert "it fails" in traces.find("key", lambda: describe_call((x,), {})).reason
    with torch.device("meta"):
        assert traces.find("key", lambda: describe_call((x,), {})) is made


def test_copies_and_pickles_have_no_units():
    module, x = nn.Linear(3, 3), torch.randn(3)
    unit_of(module, x)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), copy.copy(module)):
        other.weight = nn.Parameter(torch.zeros(3, 3))
        torch.testing.assert_close(value_of(other, x), other(x))
    torch.testing.assert_close(value_of(module, x), module(x))


def test_autocast_is_written_into_the_block():
    module, x = nn.Linear(3, 3), torch.randn(3)
    with torch.autocast("cpu", torch.bfloat16):
        found = find(MODULE_CALL, module, (x,), key="autocast")
    assert found.outputs[0].dtype == torch.bfloat16


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def test_named_tuples_come_back_as_they_are():
    def function(pair):
        return Pair(pair.right * 2, F.relu(pair.left))

    rows = [[torch.randn(3), torch.randn(3)]]
    unit = find(function, None, (Pair(*rows[0]),))
    (found,) = run_rows(unit, rows)
    assert isinstance(found, Pair)
    torch.testing.assert_close(found, function(Pair(*rows[0])))
