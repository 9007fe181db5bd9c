"""Nothing that was learnt from a model is used after the model has changed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import penstock as ps
from tests.existing_code.harness import MAPS, Maker, plainly

pytestmark = pytest.mark.usefixtures("unchanged_torch")

SCALE = 2.0


def shift(x):
    return x + 1


class Model(nn.Module):
    """A module with everything that a unit may depend on."""

    offset = 0.0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.head = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Tanh(), nn.Linear(3, 2))
        self.scale = 1.0
        self.activation = torch.tanh
        self.sizes = [1.0, 2.0]
        self.eval()

    def cell(self, x):
        return self.activation(self.layer(x)) * self.scale + self.offset

    def forward(self, x):
        y = shift(self.head(self.cell(x))) * self.sizes[0] * SCALE
        return y * 0 if self.training else y


def model_and_rows():
    make = Maker()
    return make.module(Model()), make.tensors(4, 2)


def to_training(model):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.train()


def replace_submodule(model):
    model.layer = Maker(5).module(nn.Linear(2, 3))


def replace_parameter(model):
    model.layer.weight = nn.Parameter(torch.ones(3, 2))


def replace_in_sequential(model):
    model.head[2] = nn.ReLU()


def change_attribute(model):
    model.scale = 3.0


def change_list(model):
    model.sizes[0] = 7.0


def change_function(model):
    model.activation = torch.sin


def change_class_attribute(model):
    model.offset = 0.25


def load_state(model):
    other = Maker(7).module(Model())
    model.load_state_dict(other.state_dict())


def load_state_by_assignment(model):
    other = Maker(7).module(Model())
    model.load_state_dict(other.state_dict(), assign=True)


def step_optimizer(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    sum(y.sum() for y in plainly(model, Maker(3).tensors(2, 2))).backward()
    optimizer.step()
    optimizer.zero_grad()


def add_hook(model):
    model.layer.register_forward_hook(lambda module, args, output: output * 2)


def add_pre_hook(model):
    model.head[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,))


def add_global_hook(model):
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, output: output * 2 if isinstance(module, nn.Linear) else None
    )
    model.undo = handle.remove


def freeze(model):
    for parameter in model.layer.parameters():
        parameter.requires_grad_(False)


def change_forward(model):
    model.forward = lambda x: model.layer(x) * 5


def change_method(model):
    model.cell = lambda x: model.layer(x) * 5


def change_weight_data(model):
    model.layer.weight.data = torch.full((3, 2), 0.5)


def grow_weight(model):
    model.layer = Maker(5).module(nn.Linear(2, 3, bias=False))


def delete_bias(model):
    model.layer.bias = None


CHANGES = [
    to_training,
    replace_submodule,
    replace_parameter,
    replace_in_sequential,
    change_attribute,
    change_list,
    change_function,
    change_class_attribute,
    load_state,
    load_state_by_assignment,
    step_optimizer,
    add_hook,
    add_pre_hook,
    add_global_hook,
    freeze,
    change_forward,
    change_method,
    change_weight_data,
    grow_weight,
    delete_bias,
]


@pytest.mark.parametrize("way", MAPS)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_between_two_maps_is_seen(change, way):
    model, rows = model_and_rows()
    for _ in range(2):
        torch.testing.assert_close(MAPS[way](model, rows), plainly(model, rows))
    try:
        change(model)
        found, expected = MAPS[way](model, rows), plainly(model, rows)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
        leaves = [leaf for leaf in (*rows, *model.parameters()) if leaf.requires_grad]
        for mine, wanted in zip(
            torch.autograd.grad(sum(y.square().sum() for y in found), leaves, allow_unused=True),
            torch.autograd.grad(sum(y.square().sum() for y in expected), leaves, allow_unused=True),
            strict=True,
        ):
            torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-11)
    finally:
        vars(model).get("undo", lambda: None)()


@pytest.mark.parametrize("way", MAPS)
def test_a_change_of_a_global_or_of_a_function_is_seen(way, monkeypatch):
    model, rows = model_and_rows()
    MAPS[way](model, rows)
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    torch.testing.assert_close(MAPS[way](model, rows), plainly(model, rows))
    monkeypatch.setitem(globals(), "shift", lambda x: x - 1)
    torch.testing.assert_close(MAPS[way](model, rows), plainly(model, rows))


@pytest.mark.parametrize("way", MAPS)
def test_another_dtype_is_seen(way):
    model, rows = model_and_rows()
    MAPS[way](model, rows)
    model.to(torch.float32)
    rows = [row.detach().float() for row in rows]
    found, expected = MAPS[way](model, rows), plainly(model, rows)
    assert found[0].dtype is torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", MAPS)
def test_a_changed_closure_is_seen(way):
    factor, rows = 2.0, Maker().tensors(3, 2)

    def run(x):
        return x * factor

    MAPS[way](run, rows)
    factor = 3.0
    torch.testing.assert_close(MAPS[way](run, rows), plainly(run, rows))


@pytest.mark.parametrize("way", MAPS)
def test_two_models_of_one_class_do_not_mix(way):
    (first, rows), second = model_and_rows(), Maker(9).module(Model())
    second.scale = 4.0
    for model in (first, second, first, copy.deepcopy(second)):
        torch.testing.assert_close(MAPS[way](model, rows), plainly(model, rows))


@pytest.mark.parametrize("way", MAPS)
def test_another_grad_mode_is_seen(way):
    model, rows = model_and_rows()
    with torch.no_grad():
        MAPS[way](model, rows)
    assert all(y.requires_grad for y in MAPS[way](model, rows))
    with torch.no_grad():
        assert not any(y.requires_grad for y in MAPS[way](model, rows))


@pytest.mark.parametrize("way", MAPS)
def test_other_shapes_and_other_numbers_of_instances_are_seen(way):
    def run(xs):
        return torch.softmax(xs, 0).sum(1)

    for lengths in ((2, 3), (3, 2, 2), (4,), (2, 3)):
        rows = Maker().sentences(lengths, 3)
        torch.testing.assert_close(MAPS[way](run, rows), plainly(run, rows))


@pytest.mark.parametrize("way", MAPS)
def test_a_function_that_does_something_else_each_time_is_not_remembered(way):
    calls = []

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            calls.append(1)
            return self.layer(x) * len(calls)

    model, rows = Maker().module(Odd()), Maker().tensors(3, 2)
    found = [MAPS[way](model, rows) for _ in range(2)]
    calls.clear()
    expected = [plainly(model, rows) for _ in range(2)]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("way", MAPS)
def test_the_training_mode_of_batch_norm_is_seen(way):
    import warnings

    def run(mode):
        make = Maker()
        net = make.module(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
        rows = make.sentences((3, 4), 2)
        results = []
        for training in (True, False, True):
            net.train(training)
            results.append(mode(net, rows))
        return results, net[1].running_mean

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.PenstockWarning)
        found = run(MAPS[way])
    torch.testing.assert_close(found, run(plainly), rtol=1e-9, atol=1e-11)


def test_dropout_is_drawn_anew_in_every_map():
    drop = nn.Dropout(0.5)
    rows = [torch.ones(50) for _ in range(2)]
    first, second = ps.map(drop, rows), ps.map(drop, rows)
    assert not torch.equal(first[0], second[0])
    assert not torch.equal(first[0], first[1])


def test_a_repeated_structure_needs_no_new_launches():
    model, rows = model_and_rows()
    counts = []
    for _ in range(3):
        with torch.no_grad(), ps.profile() as run:
            ps.map(model, rows)
        counts.append(len(run.launches))
    assert counts[1] == counts[2] <= counts[0]


def test_a_structure_that_comes_again_is_planned_once_and_the_profile_says_so():
    model, rows = model_and_rows()
    ps.map(model, rows, granularity="op")
    with ps.profile() as again:
        ps.map(model, rows, granularity="op")
    with ps.profile() as another:
        ps.map(model, rows[:-1], granularity="op")
    assert (again.plan_hits, another.plan_hits) == (1, 0)
    assert "1 plan hit" in again.summary()
