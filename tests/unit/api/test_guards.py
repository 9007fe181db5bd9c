"""What a function can reach: found anew after any change, and only then."""

import functools
import weakref
from dataclasses import dataclass
from enum import Enum

import pytest
import torch
from torch import nn

from penstock.api.guards import Guards

SCALE = 2.0


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.other = nn.Parameter(torch.ones(2))
        self.rate, self.steps, self.act = 0.5, 1000, torch.tanh
        self.sizes, self.names = [1, 2], {"a": 1}

    def forward(self, x):
        for name in ("extra", "spare"):  # so that any attribute may count
            x = x * getattr(self, name, 1)
        return x * self.weight


class Quiet(nn.Module):
    """Its code names no attribute but `weight`."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.calls, self.last, self.cache, self.log = 0, None, {}, [1, 2]

    def forward(self, x):
        return x * self.weight


class Dropping(nn.Dropout):
    """Code of a library reads its attributes."""


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.part, self.last = Part(), nn.Linear(2, 2)

    def forward(self, x):
        return self.last(self.part.act(self.part(x))) * SCALE


def tie(model):
    model.part.other = model.part.weight


def rename(model):
    del model.part.steps
    model.part.paces = 1000


def exchange(model):
    model.part.weight, model.part.other = model.part.other, model.part.weight


CHANGES = {
    "a flag": lambda model: model.part.eval(),
    "a number": lambda model: setattr(model.part, "steps", 1001),
    "a number of another type": lambda model: setattr(model.part, "rate", 1),
    "a function": lambda model: setattr(model.part, "act", torch.relu),
    "a new attribute": lambda model: setattr(model.part, "extra", 3),
    "another name": rename,
    "an item of a list": lambda model: model.part.sizes.append(3),
    "an item of a dict": lambda model: model.part.names.update(a=2),
    "a key of a dict": lambda model: model.part.names.update(b=model.part.names.pop("a")),
    "another list": lambda model: setattr(model.part, "sizes", [1, 3]),
    "a hook": lambda model: model.last.register_forward_hook(lambda *given: None),
    "a hook before": lambda model: model.last.register_forward_pre_hook(lambda *given: None),
    "a submodule": lambda model: setattr(model, "last", nn.Linear(2, 2)),
    "one more submodule": lambda model: model.part.add_module("inner", nn.Linear(2, 2)),
    "tied parameters": tie,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_within_a_module_is_seen(change):
    model = Whole()
    guards = Guards(model.forward)
    before = guards.values()
    assert guards.values() is before
    change(model)
    after = guards.values()
    assert after != before
    assert after == Guards(model.forward).values()
    assert guards.values() is after


def test_what_no_code_names_may_change():
    model = Quiet()
    guards = Guards(model.forward)
    before = guards.values()
    for step in range(3):
        model.calls, model.last = step, torch.ones(step + 1)
        model.cache[step] = torch.ones(1)
        model.log.append(step)
        model.more = step
        assert guards.values() is before


def test_what_code_of_a_library_may_read_counts():
    model = Dropping(0.5)
    guards = Guards(model.forward)
    before = guards.values()
    model.p = 0.25
    assert guards.values() != before


def test_an_equal_object_may_stand_for_another():
    model = Quiet()

    def f(x):
        return model(x) if model.log == kind else x

    kind, model.log = Kind("a"), Kind("a")
    guards = Guards(f)
    before = guards.values()
    model.log = Kind("a")
    assert guards.values() is before
    model.log = Kind("b")
    assert guards.values() != before, "though no code names what makes it another"
    model.log = Kind(torch.ones(2))
    with_tensor = guards.values()
    model.log = Kind(torch.ones(2))
    assert guards.values() != with_tensor, "they do not say whether they are equal"


@dataclass
class Kind:
    name: object


def test_members_of_an_enumeration_are_not_alike():
    def f(x):
        return x * 2 if mode is Mode.TRAIN else x

    mode = Mode.TRAIN
    guards = Guards(f)
    before = guards.values()
    mode = Mode.TEST
    assert guards.values() != before


class Mode(Enum):
    TRAIN = "train"
    TEST = "test"


def test_parameters_that_change_places_are_the_same_parameters():
    model = Whole()
    guards = Guards(model.forward)
    before = guards.values()
    exchange(model)
    assert guards.values() == before


def test_a_rebound_global_is_seen(monkeypatch):
    guards = Guards(Whole().forward)
    before = guards.values()
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert guards.values()["SCALE"] != before["SCALE"]
    monkeypatch.delitem(globals(), "SCALE")
    assert "SCALE" not in guards.values()


def test_a_rebound_closure_is_seen_through_functions():
    rate = 1000

    def scaled(x):
        return x * rate

    inner = scaled

    def outer(x):
        return inner(x)

    guards = Guards(outer)
    before = guards.values()
    assert guards.values() is before
    rate = 1001
    assert guards.values()["rate"] == ("int", 1001)
    inner = abs
    assert "rate" not in guards.values()


def test_torch_settings_are_seen():
    guards = Guards(Whole().forward)
    before = guards.values()
    with torch.autocast("cpu", torch.bfloat16):
        inside = guards.values()
    assert inside["autocast on cpu"] == (True, "torch.bfloat16")
    assert guards.values() == before
    torch.set_default_dtype(torch.float64)
    try:
        assert guards.values()["the default dtype"] == "float64"
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_function_in_the_place_of_one_that_is_gone_is_another():
    acts = {}

    def f(x):
        return acts["act"](x)

    guards = Guards(f)
    for rate in range(1000, 1050):
        acts["act"] = _scaled(rate)
        assert guards.values()["rate"] == ("int", rate)


def _scaled(rate):
    return lambda x: x * rate


def test_what_moves_from_one_container_to_the_next_is_noticed():
    first, second, named, others = [2, 3], [5], {"p": 2}, {}

    def f(x):
        return x * len(first) + len(second) * len(named) + len(others)

    guards = Guards(f)
    guards.values()
    second.insert(0, first.pop())
    assert (guards.values()["first[0]"], guards.values()["second[0]"]) == (("int", 2), ("int", 3))
    assert "first[1]" not in guards.values()
    others.update(named)
    named.clear()
    assert "named['p']" not in guards.values()
    assert guards.values()["others['p']"] == ("int", 2)


def test_lists_of_one_module_are_told_apart():
    model = Part()
    model.spare = [7]
    guards = Guards(model.forward)
    guards.values()
    model.spare.insert(0, model.sizes.pop())
    found = guards.values()
    assert [key for key in found if key.startswith("self.sizes[")] == ["self.sizes[0]"]
    model.sizes.append(model.spare.pop(0))
    assert "self.sizes[1]" in guards.values()


def test_other_attributes_of_a_module_and_another_partial_function_are_noticed():
    model = Part()
    guards = Guards(model.forward)
    guards.values()
    model.__dict__ = dict(vars(model), steps=7)
    assert guards.values()["self.steps"] == ("int", 7)

    bound = functools.partial(lambda x, k: x * k, k=2)
    guards = Guards(lambda x: bound(x))
    before = guards.values()
    bound.__setstate__((lambda x, k: x + k, (), {"k": 3}, {}))
    assert guards.values() != before


def test_containers_of_tensors_are_not_held():
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.kept = [torch.ones(3)]

        def forward(self, x):
            return x + self.kept[0]

    model = Cached()
    guards = Guards(model.forward)
    guards.values()
    gone = weakref.ref(model.kept[0])
    model.kept = [torch.zeros(3)]
    assert gone() is None
