"""Which functions may be recorded as one step, and what is said of the others."""

from __future__ import annotations

import dataclasses
import math
import random
import sys
import types
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import penstock as ps
from penstock.capture.lazy.bytecode import Findings, NotUnderstood, Run, find_effects
from penstock.capture.lazy.purity import first_difference, judge, torch_calls
from penstock.capture.lazy.seen import ARGUMENT, SELF, outside

HIDDEN = 4
NAMES: list[str] = []
OPTIONS = {"scale": 2.0, "activation": torch.tanh}
COUNT = 0
DEEP = [[[[[1]]]]]
SEEN: set[int] = set()
SETTINGS = types.SimpleNamespace(scale=0.5, inner=types.SimpleNamespace(power=2))


class State(NamedTuple):
    h: torch.Tensor
    c: torch.Tensor


@dataclasses.dataclass
class Record:
    h: torch.Tensor
    depth: int


class Logger:
    def log(self, x):
        self.last = x


class Plain:
    def __init__(self):
        self.weight = torch.ones(3)

    def scale(self, x):
        return x * self.weight


def twice(x):
    return x * 2


class Model(nn.Module):
    factor = 3

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(3, 3)
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.heads = nn.ModuleDict({"a": nn.Linear(3, 1)})
        self.weight = nn.Parameter(torch.ones(3))
        self.sizes = [1, 2]
        self.size = 2
        self.memory: dict = {}
        self.logger = Logger()
        self.config = types.SimpleNamespace(rate=0.1)
        self.act = F.relu
        self.plain = Plain()

    @property
    def device(self):
        return self.weight.device

    # pure

    def calls_a_module(self, x):
        return self.cell(x).tanh()

    def reads_a_parameter(self, x):
        return x @ self.weight + self.weight.mean()

    def reads_numbers(self, x):
        return x * self.size * self.factor * HIDDEN * OPTIONS["scale"] * math.sqrt(2)

    def branches_on_attributes(self, x):
        if self.training and self.size > 1:
            return x
        return -x

    def loops_over_modules(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        for number, layer in enumerate(self.layers):
            x = layer(x) + number
        for first, second in zip(self.layers, self.layers[1:]):
            x = second(first(x))
        return x

    def comprehends(self, xs):
        return torch.stack([self.cell(x) for x in xs]), {k: v * 2 for k, v in enumerate(xs)}

    def sums_a_generator(self, xs):
        return sum(x * self.size for x in xs)

    def maps_a_lambda(self, xs):
        return list(map(lambda x: self.cell(x), xs))  # noqa: C417

    def defines_a_helper(self, x):
        def helper(y, scale=2):
            return y * scale + x

        return helper(x) + helper(x, 3)

    def calls_methods(self, x):
        return self.calls_a_module(x) + twice(x)

    def uses_no_grad(self, x):
        with torch.no_grad():
            y = self.cell(x)
        return y + x

    def builds_containers(self, x):
        parts = []
        table = {}
        for k in range(3):
            parts.append(x * k)
            table[k] = x
        parts[0] = x
        return torch.cat(parts), table

    def makes_named_tuples(self, x):
        return State(x, x * 2), Record(x, depth=2)

    def changes_its_own_tensor(self, x):
        y = torch.zeros(3)
        y[0] = 1.0
        y += 1
        y.add_(2)
        return y + x

    def picks_by_key(self, x):
        return self.heads["a"](self.layers[0](x))

    def reads_plain_objects(self, x):
        return x * self.config.rate * SETTINGS.inner.power

    def uses_a_property(self, x):
        return x + torch.ones(3, device=self.device)

    def calls_a_function_attribute(self, x):
        return self.act(x) + OPTIONS["activation"](x)

    def calls_with_stars(self, *xs, **options):
        return torch.cat([*xs], **options)

    def raises(self, x):
        if x.dim() != 1:
            raise ValueError(f"got {x.dim()} dimensions")
        return x

    def chooses_a_module(self, x, is_first: bool):
        layer = self.cell if is_first else self.layers[1]
        return layer(x)

    def uses_other_objects(self, x):
        return self.plain.scale(x)

    def formats(self, x):
        return x, f"{self.size:>3} {HIDDEN!r}"

    def unpacks(self, x):
        first, *rest = x.unbind()
        return first, rest[::-1], x[..., 1:]

    # not pure

    def writes_an_attribute(self, x):
        self.last = x
        return x

    def counts(self, x):
        self.size += 1
        return x

    def deletes(self, x):
        del self.last
        return x

    def writes_an_argument(self, node):
        node.state = self.cell(node.x)
        return node.state

    def writes_a_global(self, x):
        global COUNT
        COUNT = 1
        return x

    def appends_to_a_global(self, x):
        NAMES.append("x")
        return x

    def fills_memory(self, x):
        self.memory["x"] = x
        return x

    def fills_memory_by_another_name(self, x):
        memory = self.memory
        memory["x"] = x
        return x

    def remembers(self):
        return self.memory

    def adds_to_a_set(self, x):
        SEEN.add(self.size)
        return x

    def fills_what_a_method_returns(self, x):
        self.remembers()["x"] = x
        return x

    def adds_to_its_argument(self, x):
        x.add_(1)
        return x

    def sets_an_item_of_its_argument(self, x):
        x[0] = 1
        return x

    def adds_to_a_parameter(self, x):
        self.weight.add_(x)
        return x

    def increments_a_parameter(self, x):
        weight = self.weight
        weight += x
        return x

    def prints(self, x):
        print(x)
        return x

    def logs(self, x):
        self.logger.log(x)
        return x

    def yields(self, x):
        yield x

    async def waits(self, x):
        return x

    def imports(self, x):
        import numpy

        return numpy.asarray(x)

    def catches(self, x):
        try:
            return self.cell(x)
        except RuntimeError:
            return x

    def calls_its_argument(self, f, x):
        return f(x)

    def calls_itself(self, x):
        return x if self.size else self.calls_itself(x)

    def draws_from_python(self, x):
        return x * random.random()

    def seeds(self, x):
        torch.manual_seed(0)
        return x

    def trains(self, x):
        self.train()
        return x

    def looks_up(self, x, name):
        return getattr(self, name)(x)

    def enters(self, x):
        with open("file"):
            return x

    def goes_backward(self, x):
        x.sum().backward()
        return x

    def reads_an_object(self, x):
        return x, self.logger

    def asks_for_gradients(self, x):
        return x * 2 if x.requires_grad else x

    def asks_for_grad_mode(self, x):
        return x * 2 if torch.is_grad_enabled() else x

    def reads_deep_containers(self, x):
        return x, DEEP

    def has_a_mutable_default(self, x, seen=[]):  # noqa: B006
        return x

    def changes_an_outer_variable(self, x):
        total = 0

        def helper():
            nonlocal total
            total += 1
            return total

        return helper() * x

    def walks(self, node):
        while self.chain is not None:
            self = self.chain
        return node


PURE = [name for name in vars(Model) if name not in ("device", "factor", "remembers")]
PURE = [name for name in PURE if not name.startswith("_")]
SPLIT = PURE.index("writes_an_attribute")
NOT_PURE = {
    "writes_an_attribute": "writes self.last at",
    "counts": "writes self.size at",
    "deletes": "deletes self.last at",
    "writes_an_argument": "writes its argument.state at",
    "writes_a_global": "writes a global at",
    "appends_to_a_global": "calls NAMES.append",
    "fills_memory": "changes an item of self.memory at",
    "fills_memory_by_another_name": "changes an item of self.memory at",
    "adds_to_a_set": "calls SEEN.add",
    "fills_what_a_method_returns": "changes what self.remembers returned",
    "adds_to_its_argument": "calls the method add_",
    "sets_an_item_of_its_argument": "changes an item of its argument at",
    "adds_to_a_parameter": "calls self.weight.add_",
    "increments_a_parameter": "changes in place self.weight at",
    "prints": "calls print",
    "logs": "writes self.last at",
    "yields": "generator or coroutine",
    "waits": "generator or coroutine",
    "imports": "imports a module at",
    "catches": "catches exceptions at",
    "calls_its_argument": "calls its argument at",
    "calls_itself": "calls itself",
    "draws_from_python": "calls random.random",
    "seeds": "calls torch.manual_seed",
    "trains": "acts on the module",
    "looks_up": "by a name that is computed",
    "enters": "enters open",
    "goes_backward": "calls the method backward",
    "reads_an_object": "reads self.logger, a Logger",
    "asks_for_gradients": "reads requires_grad of a tensor",
    "asks_for_grad_mode": "calls torch.is_grad_enabled",
    "reads_deep_containers": "reads DEEP, a list",
    "has_a_mutable_default": "default argument that is a list",
    "changes_an_outer_variable": "writes the outer variable total at",
    "walks": "loop",
}


@pytest.mark.parametrize("name", PURE[:SPLIT])
def test_these_are_pure(name):
    verdict = judge(vars(Model)[name], Model())
    assert verdict.is_pure, verdict.reason


@pytest.mark.parametrize("name", PURE[SPLIT:])
def test_these_are_not(name):
    verdict = judge(vars(Model)[name], Model())
    assert not verdict.is_pure
    assert NOT_PURE[name] in verdict.reason


def test_reasons_name_the_line():
    line = Model.counts.__code__.co_firstlineno + 1
    assert judge(Model.counts, Model()).reason.endswith(f"test_purity.py:{line}")


def test_plain_functions_are_judged_with_their_globals_and_cells():
    factor, layer = 2.0, nn.Linear(3, 3)

    def pure(x):
        return layer(x) * factor * HIDDEN + twice(x)

    def impure(x):
        return layer(x) + random.random()

    verdict = judge(pure)
    assert verdict.is_pure, verdict.reason
    assert {value for _, value in verdict.reads.cells} == {factor, layer}
    assert ("HIDDEN", HIDDEN) in [(name, value) for _, name, value in verdict.reads.names]
    assert not judge(impure).is_pure


def test_overridden_methods_and_super_are_followed_on_the_object():
    class Calling(Model):
        def calls_a_module(self, x):
            return super().calls_a_module(x) + 1

    class Writing(Model):
        def calls_a_module(self, x):
            self.last = x
            return super().calls_a_module(x)

    assert judge(Model.calls_methods, Calling()).is_pure
    assert "writes self.last" in judge(Model.calls_methods, Writing()).reason


def test_modules_are_judged_by_their_forward_and_by_what_is_inside():
    class Inner(nn.Module):
        def forward(self, x):
            self.last = x
            return x

    class Outer(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x)

    assert judge(Outer(nn.Tanh())).is_pure
    assert "writes self.last" in judge(Outer(Inner())).reason
    assert "writes self.last" in judge(nn.Sequential(Inner())).reason
    hooked = nn.Linear(3, 3)
    hooked.register_forward_hook(lambda *_: None)
    assert "hooks" in judge(Outer(hooked)).reason


def test_a_ps_function_inside_is_followed():
    @ps.function
    def cell(x):
        return x * 2

    def outer(x):
        return cell(x) + 1

    assert judge(outer).is_pure


def test_verdicts_on_bytecode_are_cached_per_code_object():
    code = twice.__code__
    assert find_effects(code, False) is find_effects(code, False)


class Instructions:
    """Bytecode of another version of Python: (name, argument, what it stands for) in order."""

    def __init__(self, monkeypatch, version, *lines):
        self.version = version
        monkeypatch.setattr(sys, "version_info", version)
        self.instructions = [
            types.SimpleNamespace(
                opname=name, arg=arg, argval=value, argrepr="", offset=2 * k, positions=None
            )
            for k, (name, arg, value) in enumerate(lines)
        ]

    def findings(self):
        run = Run(twice.__code__, {}, Findings())
        run.instructions = self.instructions
        run._positions = {ins.offset: k for k, ins in enumerate(self.instructions)}
        run.run({"self": outside(SELF), "x": ARGUMENT})
        return run.findings


ATTRIBUTE = ("attribute", "layers")


def test_the_bytecode_of_python_3_13_is_read(monkeypatch):
    """`for layer in self.layers: x = layer(x, scale=2)`; `return self.cell(x)`."""
    findings = Instructions(
        monkeypatch,
        (3, 13),
        ("RESUME", 0, 0),
        ("LOAD_FAST", 0, "self"),
        ("LOAD_ATTR", 2, "layers"),
        ("GET_ITER", None, None),
        ("FOR_ITER", 9, 26),
        ("STORE_FAST_LOAD_FAST", 33, ("layer", "layer")),
        ("PUSH_NULL", None, None),
        ("LOAD_FAST", 1, "x"),
        ("LOAD_CONST", 1, 2),
        ("LOAD_CONST", 2, ("scale",)),
        ("CALL_KW", 2, 2),
        ("STORE_FAST", 1, "x"),
        ("JUMP_BACKWARD", 9, 8),
        ("END_FOR", None, None),
        ("POP_TOP", None, None),
        ("LOAD_FAST", 0, "self"),
        ("LOAD_ATTR", 5, "cell"),
        ("LOAD_FAST", 1, "x"),
        ("CALL", 1, 1),
        ("RETURN_VALUE", None, None),
    ).findings()
    assert findings.calls == {
        (*SELF, ATTRIBUTE, ("any", "")),
        (*SELF, ("attribute", "cell")),
    }
    assert not findings.reads


def test_the_bytecode_of_python_3_12_is_read(monkeypatch):
    """`return [layer(x) for layer in self.layers]`, written out in the function itself."""
    findings = Instructions(
        monkeypatch,
        (3, 12),
        ("LOAD_FAST", 0, "self"),
        ("LOAD_ATTR", 2, "layers"),
        ("GET_ITER", None, None),
        ("LOAD_FAST_AND_CLEAR", 2, "layer"),
        ("SWAP", 2, 2),
        ("BUILD_LIST", 0, 0),
        ("SWAP", 2, 2),
        ("FOR_ITER", 7, 30),
        ("STORE_FAST", 2, "layer"),
        ("PUSH_NULL", None, None),
        ("LOAD_FAST", 2, "layer"),
        ("LOAD_FAST", 1, "x"),
        ("CALL", 1, 1),
        ("LIST_APPEND", 2, 2),
        ("JUMP_BACKWARD", 8, 14),
        ("END_FOR", None, None),
        ("SWAP", 2, 2),
        ("STORE_FAST", 2, "layer"),
        ("RETURN_VALUE", None, None),
    ).findings()
    assert findings.calls == {(*SELF, ATTRIBUTE, ("any", ""))}
    assert not findings.reads


def test_instructions_that_are_not_known_are_not_understood(monkeypatch):
    unknown = Instructions(monkeypatch, (3, 15), ("LOAD_MAGIC", 0, 0), ("RETURN_VALUE", 0, 0))
    with pytest.raises(NotUnderstood, match="not understood \\(LOAD_MAGIC\\)"):
        unknown.findings()


def test_recordings_are_compared_call_by_call():
    names = torch_calls(ps.function(lambda x: (x * 2).sin()).program(torch.ones(3)))
    assert [name.rsplit(".", 1)[-1] for name in names] == ["mul", "sin"]
    assert first_difference(names, names) is None
    assert "2 torch calls, then 1" in first_difference(names, names[:1])
    assert "call 0 was torch.Tensor.mul" in first_difference(names, names[::-1])
