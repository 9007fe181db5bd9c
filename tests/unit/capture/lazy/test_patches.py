"""Functions that ask before they run: on which thread, about which calls, and for how long."""

from __future__ import annotations

import threading
import types

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from penstock.capture.lazy import active_calls
from penstock.capture.lazy.candidates import find_candidates
from penstock.capture.lazy.guarded_values import ORIGINAL
from penstock.capture.lazy.module_changes import replacements
from penstock.capture.lazy.patches import Place, mark_unit, patched, patches
from penstock.capture.lazy.unit_report import UnitReport
from penstock.capture.lazy.unit_traces import MODULE_CALL

WRITERS = [(holder, name) for holder, name, _ in replacements()]
BEFORE = {(holder, name): getattr(holder, name) for holder, name in WRITERS}


def helper(x):
    return x + 1


def outer_helper(x):
    return helper(x) * 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def cell(self, x):
        return self.layer(x)

    def store(self, x):
        self.last = x
        return x

    def forward(self, x):
        return outer_helper(self.cell(self.store(x)))


class Noting:
    """Notes every call; answers those of functions named in `answers`."""

    def __init__(self, **answers):
        self.calls, self.answers = [], answers

    def on_call(self, original, owner, args, kwargs):
        name = type(owner).__name__ if original is MODULE_CALL else original.__name__
        self.calls.append((name, owner, len(args), tuple(kwargs)))
        return name in self.answers, self.answers.get(name)

    @property
    def names(self):
        return [call[0] for call in self.calls]


@pytest.fixture(autouse=True)
def nothing_stays():
    original = helper, Model.cell, nn.Module.__call__
    yield
    assert patches.count == 0
    assert active_calls.state.hook is None
    assert (helper, Model.cell, nn.Module.__call__) == original
    assert nn.Module.__call__ is MODULE_CALL
    assert {(h, n): getattr(h, n) for h, n in WRITERS} == BEFORE


def test_module_calls_ask_and_pass_through():
    model, hook, x = Model(), Noting(), torch.ones(2)
    expected = model(x)
    with patched(hook):
        assert torch.equal(model(x), expected)
    assert hook.names == ["Model", "Linear"]
    assert hook.calls[0][1] is model
    assert hook.calls[0][2:] == (1, ())


def test_a_handled_call_does_not_run():
    hook = Noting(Linear="recorded")
    with patched(hook):
        assert Model().cell(torch.ones(2)) == "recorded"


def test_candidates_ask_too():
    model = Model()
    found = find_candidates(model)
    hook = Noting()
    with patched(hook, found.places):
        model(torch.ones(2))
    assert hook.names == ["Model", "cell", "Linear", "outer_helper", "helper"]
    assert "writes self.last" in found.refused["Model.store"]
    assert hook.calls[1][1] is model
    assert hook.calls[3][1] is None


def test_candidates_are_found_from_functions_partials_and_closures():
    inner_module = types.ModuleType("users_module")
    exec("def far(x):\n    return x * 3\n", vars(inner_module))

    def nested(x):
        return x * 2

    def function(x):
        return nested(x) + inner_module.far(x) + helper(x)

    names = {place.read().__name__ for place in find_candidates(function).places}
    assert names == {"nested", "helper"}
    hook = Noting()
    with patched(hook, find_candidates(function).places):
        function(1)
    assert sorted(hook.names) == ["helper", "nested"]
    assert nested.__name__ == "nested"
    assert not hasattr(nested, ORIGINAL)


def test_methods_of_torch_and_special_methods_are_no_candidates():
    places = find_candidates(Model()).places
    assert {place.name for place in places if isinstance(place.holder, type)} == {"cell"}


def test_patches_end_after_an_exception():
    with pytest.raises(KeyboardInterrupt), patched(Noting(), find_candidates(Model()).places):
        raise KeyboardInterrupt


def test_scopes_inside_each_other_ask_the_inner_one():
    outer, inner = Noting(), Noting()
    places = find_candidates(Model()).places
    with patched(outer, places):
        with patched(inner, places):
            helper(1)
        count = patches.count
        helper(1)
        assert patches.count == count
    assert (outer.names, inner.names) == (["helper"], ["helper"])


def test_scopes_that_close_out_of_order_leave_nothing():
    place = Place(globals(), "helper")
    first = patches.acquire([place])
    second = patches.acquire([place])
    patches.release(first)
    assert hasattr(helper, ORIGINAL)
    patches.release(second)
    assert not hasattr(helper, ORIGINAL)


def test_other_threads_pass_through():
    hook, results = Noting(Linear="recorded"), []
    model = nn.Linear(2, 2)
    with patched(hook):
        thread = threading.Thread(target=lambda: results.append(model(torch.ones(2))))
        thread.start()
        thread.join()
    assert isinstance(results[0], torch.Tensor)
    assert hook.calls == []


def test_scopes_on_several_threads_share_the_patches():
    def work():
        for _ in range(20):
            with patched(Noting(), find_candidates(Model()).places):
                Model()(torch.ones(2))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_what_somebody_else_puts_there_stays():
    namespace = {"helper": helper}
    with patched(Noting(), [Place(namespace, "helper")]):
        namespace["helper"] = outer_helper
    assert namespace["helper"] is outer_helper


def test_a_call_with_hooks_of_its_own_is_not_asked_about():
    model, hook, seen = Model(), Noting(), []
    for register in (model.register_forward_hook, model.register_forward_pre_hook):
        handle = register(lambda *args: seen.append(args))
        with patched(hook):
            model(torch.ones(2))
        handle.remove()
    assert len(seen) == 2
    assert hook.names == ["Linear", "Linear"]


def test_global_hooks_keep_all_module_calls_as_they_are():
    handle = register_module_forward_hook(lambda *_: None)
    hook = Noting()
    try:
        with patched(hook):
            Model()(torch.ones(2))
    finally:
        handle.remove()
    assert hook.calls == []


def test_modules_with_a_call_of_their_own_run_it():
    class Own(nn.Linear):
        def __call__(self, x):
            return super().__call__(x) + 100

    hook = Noting()
    with patched(hook):
        assert Own(2, 2)(torch.ones(2)).min() > 50
    assert hook.names == ["Own"]


def test_marked_functions_ask_only_inside_a_scope():
    @mark_unit
    def cell(x, scale=1):
        return x * scale

    class Owner:
        @mark_unit
        def method(self, x):
            return x + 1

        @staticmethod
        @mark_unit
        def static(x):
            return x

    owner = Owner()
    assert (cell(2, scale=3), owner.method(1), owner.static(5)) == (6, 2, 5)
    hook = Noting(cell="recorded")
    with patched(hook):
        assert cell(2, scale=3) == "recorded"
        assert owner.method(1) == 2
        assert owner.static(owner) is owner
    assert hook.calls == [
        ("cell", None, 1, ("scale",)),
        ("method", owner, 1, ()),
        ("static", None, 1, ()),
    ]


def test_the_report_names_what_would_pay_off():
    report = UnitReport()
    for _ in range(3):
        report.count("Model.cell", None)
        report.count("Model.store", "writes self.last at model.py:3", operations=5)
        report.count("small", "calls print", operations=1)
    assert [record.name for record in report.units] == ["Model.cell"]
    assert [record.name for record in report.worth_marking] == ["Model.store"]
    assert report.lines() == [
        "Model.cell: 3 calls, one step each",
        "Model.store: 3 calls, 5 steps each: writes self.last at model.py:3",
    ]
