"""No call goes on with a program of before: what code can reach may change in any way that Python
allows, and the next call or map runs what is there then.
"""

import collections
import functools
import types
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import penstock as ps
from penstock.api.guards import Guards

RATE = 2.0


@dataclass
class Options:
    rate: int = 2


class Slotted:
    __slots__ = ("rate",)

    def __init__(self):
        self.rate = 2


class Scaled:
    """A plain object that is called."""

    rate = 2

    def __call__(self, x):
        return x * self.rate

    def scaled(self, x):
        return x * 2


class ScaledMore(Scaled):
    def __call__(self, x):
        return x * 9


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = 2

    def forward(self, x):
        return x * self.rate


class OtherCell(Cell):
    def forward(self, x):
        return x * 9


class Rated(nn.Module):
    """Reads a global that the program itself does not name."""

    def forward(self, x):
        return x * RATE


def _nested(depth):
    return {"a": _nested(depth - 1)} if depth else [2]


def _innermost(nested):
    while isinstance(nested, dict):
        nested = nested["a"]
    return nested


def set_item(container, key, value):
    container[key] = value


def set_attribute(owner, name, value):
    setattr(owner, name, value)


#: What is kept, how a program uses it, and how it is changed.
KEPT = {
    "list": (lambda: [2], lambda k, x: x * k[0], lambda k: set_item(k, 0, 5)),
    "list in a dict": (
        lambda: {"sizes": [1, 2]},
        lambda k, x: x * k["sizes"][0],
        lambda k: set_item(k["sizes"], 0, 5),
    ),
    "dict in a tuple in a list": (
        lambda: [({"a": 2},)],
        lambda k, x: x * k[0][0]["a"],
        lambda k: k[0][0].update(a=5),
    ),
    "eight dicts": (
        lambda: _nested(8),
        lambda k, x: x * _innermost(k)[0],
        lambda k: set_item(_innermost(k), 0, 5),
    ),
    "set": (lambda: {1}, lambda k, x: x * len(k), lambda k: k.add(2)),
    "deque": (
        lambda: collections.deque([1]),
        lambda k, x: x * len(k),
        lambda k: k.append(2),
    ),
    "order of a dict": (
        lambda: {"a": 2, "b": 3},
        lambda k, x: x * next(iter(k.values())),
        lambda k: k.update(a=k.pop("a")),
    ),
    "tensor in lists": (
        lambda: [[torch.tensor(2.0)]],
        lambda k, x: x * k[0][0],
        lambda k: set_item(k[0], 0, torch.tensor(5.0)),
    ),
    "namespace": (
        lambda: types.SimpleNamespace(rate=2),
        lambda k, x: x * k.rate,
        lambda k: set_attribute(k, "rate", 5),
    ),
    "namespace in a namespace": (
        lambda: types.SimpleNamespace(inner=types.SimpleNamespace(sizes=[2])),
        lambda k, x: x * k.inner.sizes[0],
        lambda k: set_item(k.inner.sizes, 0, 5),
    ),
    "dataclass in a list": (
        lambda: [Options()],
        lambda k, x: x * k[0].rate,
        lambda k: set_attribute(k[0], "rate", 5),
    ),
    "attribute that is named by a string": (
        Options,
        lambda k, x: x * getattr(k, "ra" + "te"),
        lambda k: set_attribute(k, "rate", 5),
    ),
    "slot": (Slotted, lambda k, x: x * k.rate, lambda k: set_attribute(k, "rate", 5)),
    "attribute in front of that of the class": (
        Scaled,
        lambda k, x: k(x),
        lambda k: set_attribute(k, "rate", 5),
    ),
    "class of an object": (
        Scaled,
        lambda k, x: k(x),
        lambda k: set_attribute(k, "__class__", ScaledMore),
    ),
    "class of a module": (
        Cell,
        lambda k, x: k(x),
        lambda k: set_attribute(k, "__class__", OtherCell),
    ),
    "class of a module in a list": (
        lambda: [Cell()],
        lambda k, x: k[0](x),
        lambda k: set_attribute(k[0], "__class__", OtherCell),
    ),
    "attribute of a module in a list": (
        lambda: [Cell()],
        lambda k, x: k[0](x),
        lambda k: set_attribute(k[0], "rate", 5),
    ),
}


def as_function(kept, use):
    return ps.function(lambda x: use(kept, x))


def as_method(kept, use):
    class Keeper:
        def __init__(self):
            self.kept = kept

        @ps.function
        def run(self, x):
            return use(self.kept, x)

    return Keeper().run


def as_module(kept, use):
    class Keeper(nn.Module):
        def __init__(self):
            super().__init__()
            self.kept = kept

        @ps.function
        def forward(self, x):
            return use(self.kept, x)

    return Keeper().forward


def called(program, x):
    return program(x)


def mapped(program, x):
    return program.map([x, -x])[0]


WAYS = pytest.mark.parametrize("way", [called, mapped])


def check(program, way, plain, change):
    """The program gives what plain code gives, before the change and after it."""
    x = torch.tensor(3.0)
    before = plain(x)
    for _ in range(3):
        assert way(program, x) == before
    change()
    assert plain(x) != before
    assert way(program, x) == plain(x)


@WAYS
@pytest.mark.parametrize("make", [as_function, as_method, as_module])
@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT)
def test_what_is_kept_may_change(case, make, way):
    build, use, alter = case
    kept = build()
    check(make(kept, use), way, lambda x: use(kept, x), lambda: alter(kept))


def _helper():
    def helper(x, k=2, *, j=1):
        return x * k * j

    return helper


def _other(x, k=2, *, j=1):
    return x - k - j


#: What may be done to a function in place, given another one.
REPLACED = {
    "code": lambda f, other: setattr(f, "__code__", other.__code__),
    "defaults": lambda f, other: setattr(f, "__defaults__", (3,)),
    "keyword defaults": lambda f, other: setattr(f, "__kwdefaults__", {"j": 3}),
    "a keyword default": lambda f, other: f.__kwdefaults__.update(j=3),
}


def _plainly(helper):
    return helper


def _wrapped(helper):
    @functools.wraps(helper)
    def wrapper(x):
        return helper(x)

    return wrapper


def _through_three(helper):
    return _wrapped(_wrapped(_wrapped(_wrapped(helper))))


def _in_a_list(helper):
    kept = [helper]
    return lambda x: kept[0](x)


def _in_a_partial(helper):
    return functools.partial(helper)


def _as_a_method(helper):
    class Owner:
        run = staticmethod(helper)

    owner = Owner()
    return lambda x: owner.run(x)


def _as_forward(helper):
    class Owner(nn.Module):
        def forward(self, x):
            return helper(x)

    return Owner()


def _as_a_program(helper):
    return ps.function(helper)


def _unconverted(helper):
    return ps.do_not_convert(_wrapped(helper))


CALLED = [_plainly, _wrapped, _through_three, _in_a_list, _in_a_partial, _as_a_method]
CALLED += [_as_forward, _as_a_program, _unconverted]


@WAYS
@pytest.mark.parametrize("around", CALLED)
@pytest.mark.parametrize("replace", REPLACED.values(), ids=REPLACED)
def test_a_helper_may_be_replaced_in_place(replace, around, way):
    helper = _helper()
    use = around(helper)
    program = ps.function(lambda x: use(x))
    check(program, way, lambda x: helper(x), lambda: replace(helper, _other))


@WAYS
@pytest.mark.parametrize("replace", REPLACED.values(), ids=REPLACED)
def test_the_function_of_a_program_may_be_replaced_in_place(replace, way):
    helper = _helper()
    check(ps.function(helper), way, helper, lambda: replace(helper, _other))


@WAYS
@pytest.mark.parametrize("replace", REPLACED.values(), ids=REPLACED)
@pytest.mark.parametrize("base", [object, nn.Module])
def test_a_method_may_be_replaced_in_place(base, replace, way):
    def method(self, x, k=2, *, j=1):
        return x * k * j

    def other(self, x, k=2, *, j=1):
        return x - k - j

    owner = type("Owner", (base,), {"forward": ps.function(method)})()
    change = functools.partial(replace, method, other)
    check(owner.forward, way, lambda x: method(owner, x), change)


def test_new_parameters_are_bound():
    def f(x):
        return x

    def g(x, k):
        return x * k

    program = ps.function(f)
    assert program(torch.tensor(3.0)) == 3
    f.__code__ = g.__code__
    assert program(torch.tensor(3.0), torch.tensor(2.0)) == 6
    assert program.map([torch.tensor(3.0)], k=torch.tensor(2.0)) == [6]


@WAYS
def test_the_function_that_a_wrapper_has_noted_may_be_another(way):
    @functools.wraps(_other)
    def wrapper(x):
        return wrapper.__wrapped__(x)

    program = ps.function(lambda x: wrapper(x))
    check(program, way, wrapper, lambda: setattr(wrapper, "__wrapped__", lambda x: x * 9))


@WAYS
def test_what_a_wrapper_closes_over_may_change(way):
    kept = [1]

    def added(f):
        @functools.wraps(f)
        def wrapper(x):
            return f(x) + kept[0]

        return wrapper

    wrapper = added(lambda x: x)
    check(ps.function(wrapper), way, wrapper, lambda: set_item(kept, 0, 5))


@WAYS
@pytest.mark.parametrize("base", [object, nn.Module])
@pytest.mark.parametrize("name", ["scaled", "rate", "as_property"])
def test_what_a_class_has_may_be_another(name, base, way):
    class Owner(base):
        rate = 2

        def scaled(self, x):
            return x * self.rate

        @property
        def as_property(self):
            return 1

        @ps.function
        def forward(self, x):
            return self.scaled(x) * self.as_property

    new = {"scaled": lambda self, x: x * 9, "rate": 5, "as_property": 7}
    owner = Owner()
    plain = Owner.forward.__wrapped__
    change = functools.partial(setattr, Owner, name, new[name])
    check(owner.forward, way, lambda x: plain(owner, x), change)


@WAYS
def test_a_global_that_only_a_submodule_reads_may_be_another(monkeypatch, way):
    cell = Rated()
    program = ps.function(lambda x: cell(x))
    change = functools.partial(monkeypatch.setitem, globals(), "RATE", 3.0)
    check(program, way, cell, change)


@WAYS
def test_another_hook_in_the_place_of_one_is_seen(way):
    cell = Cell()
    handle = cell.register_forward_hook(lambda module, given, output: output + 1)

    def change():
        handle.remove()
        cell.register_forward_hook(lambda module, given, output: output + 2)

    check(ps.function(lambda x: cell(x)), way, cell, change)


def test_closures_of_one_name_are_told_apart():
    def scaled(rate):
        cell = [rate]

        def helper(x):
            return x * rate

        def change(new):
            nonlocal rate
            rate = new

        return helper, change, cell

    helpers, changes, _ = zip(*map(scaled, (1, 1, 2)), strict=True)
    program = ps.function(lambda x: [helper(x) for helper in helpers])
    x = torch.tensor(3.0)
    assert program(x) == [3, 3, 6]
    changes[1](2)
    assert program(x) == [3, 6, 6]


@pytest.mark.filterwarnings("ignore:.*was traced")
def test_an_object_in_the_memory_of_another_is_another():
    kept = {}
    program = ps.function(lambda x: kept["f"](x))
    x = torch.tensor(2.0)
    for number in range(40):  # functions without anything in them that could be compared
        made = (lambda x: x + 1), (lambda x: x - 1), (lambda x: x * 4)
        kept["f"] = made[number % 3]
        del made
        assert program(x) == (3, 1, 8)[number % 3]
        del kept["f"]


def test_what_no_code_names_is_not_looked_at():
    class Keeper:
        def __init__(self):
            self.rate, self.seen, self.trees = 2, 0, [[number] for number in range(1000)]

        @ps.function
        def run(self, x):
            return x * self.rate

    keeper = Keeper()
    guards = Guards(types.MethodType(Keeper.run.__wrapped__, keeper))
    before = guards.values()
    assert not any("seen" in name or "trees" in name for name in before)
    keeper.seen += 1
    assert guards.values() is before


def test_objects_that_lead_to_each_other_are_followed_once():
    first = types.SimpleNamespace(rate=2, next=None)
    last = first
    for _ in range(5000):
        last = types.SimpleNamespace(rate=2, next=last)
    first.next = last
    program = ps.function(lambda x: x * last.next.rate)
    assert program(torch.tensor(3.0)) == 6
    last.next.rate = 5
    assert program(torch.tensor(3.0)) == 15


def test_other_tensors_of_a_module_are_read_and_nothing_is_traced_again():
    class Kept(nn.Module):
        def __init__(self):
            super().__init__()
            self.state = torch.ones(2)

        @ps.function
        def forward(self, x):
            return x + self.state

    model = Kept()
    for number in range(3):
        model.state = torch.full((2,), float(number))
        assert model(torch.ones(2))[0] == 1 + number
    assert "traced once" in model.forward.explain_retraces()
    model.state = 7
    assert model(torch.ones(2))[0] == 8


def test_the_reason_of_a_trace_names_what_was_replaced():
    helper = _helper()
    program = ps.function(lambda x: helper(x))
    program(torch.tensor(3.0))
    helper.__defaults__ = (3,)
    program(torch.tensor(3.0))
    assert "helper.__defaults__[0]: 2 -> 3" in program.explain_retraces()


def test_a_static_object_that_cannot_be_hashed_is_told_by_its_fields():
    program = ps.function(lambda x, options: x * options.rate)
    options, x = Options(), torch.tensor(3.0)
    assert program(x, ps.static(options)) == 6
    options.rate = 5
    assert program(x, ps.static(options)) == 15
    assert program(x, ps.static(Options(5))) == 15
    assert "traced 2 times" in program.explain_retraces()


def test_a_cached_property_of_a_class_may_be_another():
    class Owner:
        @functools.cached_property
        def rate(self):
            return RATE

    program = ps.function(lambda x: x * Owner().rate)
    assert program(torch.tensor(3.0)) == 6
    Owner.rate.func.__code__ = (lambda self: 5).__code__
    assert program(torch.tensor(3.0)) == 15


def test_helpers_are_found_behind_any_number_of_objects():
    helper = _helper()
    kept = [[[number] for _ in range(200)] for number in range(20)]
    inner = _wrapped(_wrapped(helper))
    program = ps.function(lambda x: inner(x) * kept[0][0][0] + x)
    assert program(torch.tensor(3.0)) == 3
    kept[0][0][0] = 1
    assert program(torch.tensor(3.0)) == 9
    helper.__defaults__ = (3,)
    assert program(torch.tensor(3.0)) == 12


@WAYS
@pytest.mark.parametrize("count", [3, 300])
def test_a_list_in_the_place_of_another_is_noticed_in_containers_of_any_size(count, way):
    kept = [[2] for _ in range(count)]
    program = ps.function(lambda x: x * kept[0][0])
    check(program, way, lambda x: x * kept[0][0], lambda: set_item(kept, 0, [5]))
