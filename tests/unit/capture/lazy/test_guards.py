"""What a unit depends on is seen to change, also inside a scope; the rest costs nothing."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

from penstock.capture.lazy.guards import Guards
from penstock.capture.lazy.module_changes import changes
from penstock.capture.lazy.patches import patched
from penstock.capture.lazy.purity import judge
from penstock.capture.lazy.watched import Watched, watch_all


class Silent:
    def on_call(self, original, owner, args, kwargs):
        return False, None


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
        self.extra = nn.ModuleList([nn.Tanh()])
        self.scale = 2.0
        self.unused = 0
        self.hidden = None
        self.plain = torch.ones(3)

    def forward(self, x):
        for layer in self.extra:
            x = layer(x)
        return self.layers(x) * self.scale + self.plain


def module_guards(model):
    guards = Guards(judge(model).reads)
    assert guards.hold()
    return guards


CHANGES = {
    "eval": lambda m: m.eval(),
    "eval inside": lambda m: m.layers[1].eval(),
    "attribute": lambda m: setattr(m, "scale", 3.0),
    "attribute of another type": lambda m: setattr(m, "scale", 2),
    "submodule": lambda m: setattr(m, "layers", nn.Sequential(nn.Linear(3, 3))),
    "item": lambda m: m.layers.__setitem__(1, nn.Tanh()),
    "appended": lambda m: m.layers.append(nn.Tanh()),
    "list appended": lambda m: m.extra.append(nn.Tanh()),
    "list inserted": lambda m: m.extra.insert(0, nn.Tanh()),
    "list deleted": lambda m: m.extra.__delitem__(0),
    "deleted": lambda m: delattr(m.layers[0], "bias"),
    "dtype": lambda m: m.to(torch.float64),
    "shape": lambda m: setattr(m.layers[0], "weight", nn.Parameter(torch.ones(4, 3))),
    "hook": lambda m: m.layers.register_forward_hook(lambda *_: None),
    "hook of the module": lambda m: m.register_forward_pre_hook(lambda *_: None),
    "rate": lambda m: setattr(m.layers[1], "p", 0.1),
    "buffer": lambda m: m.layers[0].register_buffer("new", torch.ones(2)),
    "parameter": lambda m: m.layers[0].register_parameter("bias", None),
    "forward": lambda m: setattr(m.layers[0], "forward", lambda x: x),
    "plain tensor": lambda m: setattr(m, "plain", torch.ones(3, dtype=torch.float64)),
    "tied": lambda m: setattr(m.layers[0], "bias", m.layers[0].weight),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_inside_a_scope_are_seen(name):
    model = Model()
    with patched(Silent()):
        guards = module_guards(model)
        CHANGES[name](model)
        assert not guards.hold()


@pytest.mark.parametrize("name", CHANGES)
def test_changes_between_scopes_are_seen(name):
    model = Model()
    guards = module_guards(model)
    CHANGES[name](model)
    with patched(Silent()):
        assert not guards.hold()


def test_changes_that_are_undone_are_no_changes():
    model = Model()
    with patched(Silent()):
        guards = module_guards(model)
        model.eval()
        model.train()
        assert guards.hold()


def test_what_the_code_does_not_read_is_not_looked_at():
    model = Model()
    with patched(Silent()):
        guards = module_guards(model)
        count = changes.count
        model.a_name_that_nothing_reads = 1
        model.another_such_name = torch.ones(3)
        assert changes.count == count
        assert guards.hold()


def test_new_tensors_of_the_same_kind_keep_the_guards():
    model = Model()
    with patched(Silent()):
        guards = module_guards(model)
        model.load_state_dict(Model().state_dict())
        model.layers[0].weight = nn.Parameter(torch.randn(3, 3))
        model.plain = torch.zeros(3)
        assert guards.hold()


def test_names_cells_and_containers_are_compared_at_every_call():
    space = types.SimpleNamespace(scale=1.0, mode="a", weight=torch.ones(2))
    table = [1, 2]
    watched = Watched()
    for name in ("scale", "mode", "weight"):
        watched.add_name(vars(space), name, getattr(space, name))
    watched.add_container(table)
    guards = Guards(watched)
    assert guards.hold()
    space.scale = float("1.0")
    assert guards.hold()
    for name, value in (("scale", 1), ("mode", "b"), ("weight", torch.ones(2))):
        before = getattr(space, name)
        setattr(space, name, value)
        assert not guards.hold()
        setattr(space, name, before)
    del space.mode
    assert not guards.hold()
    space.mode = "a"
    table.append(3)
    assert not guards.hold()


def test_zero_and_minus_zero_are_not_the_same():
    space = {"zero": 0.0}
    watched = Watched()
    watched.add_name(space, "zero", 0.0)
    guards = Guards(watched)
    space["zero"] = -0.0
    assert not guards.hold()


def test_the_default_dtype_is_seen_inside_a_scope():
    with patched(Silent()):
        guards = Guards(Watched())
        torch.set_default_dtype(torch.float64)
        try:
            assert not guards.hold()
        finally:
            torch.set_default_dtype(torch.float32)


def test_all_within_reach_of_code_that_is_not_understood_is_watched():
    layer, factor, table = nn.Linear(2, 2), 2.0, {"a": 1}

    def helper(x):
        return x * factor

    def function(x):
        print(table)
        return helper(layer(x))

    watched = watch_all(function)
    assert list(watched.modules.values()) == [layer]
    guards = Guards(watched)
    assert guards.hold()
    factor = 3.0
    assert not guards.hold()
    factor = 2.0
    table["b"] = 1
    assert not guards.hold()
