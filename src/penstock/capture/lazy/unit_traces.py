"""The units of one function, method or module: found again for calls that fit, traced for others.

A unit serves calls with the same key (kinds of tensors, structure, all other arguments by value) as
long as the guards hold. Units and refusals are kept with the object they belong to, bounded in
number, and end with it; copies and pickles of the object have none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from penstock.capture.lazy.guarded_values import original_of
from penstock.capture.lazy.guards import Guards
from penstock.capture.lazy.module_changes import changes
from penstock.capture.lazy.purity import MARK, first_difference, judge, torch_calls
from penstock.capture.lazy.unit_tracing import trace_unit
from penstock.capture.lazy.units import Refusal, Signature, Unit
from penstock.capture.lazy.watched import Watched, watch_all
from penstock.capture.reach import Reach
from penstock.capture.trace import InputLeaf

#: States (such as training and evaluation) kept per function, and units kept per state.
MOST_STATES, MOST_UNITS = 8, 256

#: The longest that becomes a unit unasked, in torch calls. What is longer (a whole loop, unrolled)
#: is rarely the same twice, takes seconds to build, and may call what can be units.
MOST_CALLS = 64

#: Units that are made unasked for tensors of the same kinds and different other arguments: a
#: counter or a list of actions would have one for every value.
MOST_VALUES = 8

#: Where an object keeps the units of its methods, and a function its own.
UNITS = "_penstock_units"

#: The call of every module, before anything was patched.
MODULE_CALL = nn.Module.__call__


@dataclass(slots=True, eq=False)
class _State:
    """Units that were traced while the same guards held."""

    guards: Guards
    #: Why nothing can be a unit here; None where calls are traced.
    reason: str | None
    units: dict[Hashable, Unit | Refusal] = field(default_factory=dict)
    #: How many units were made for tensors of the same kinds, whatever the other arguments were.
    values: Counter[Hashable] = field(default_factory=Counter)


class UnitTraces:
    """The units of one function, on one object."""

    def __init__(
        self, target: Any, name: str, *, is_trusted: bool = False, returns_numbers: bool = True
    ) -> None:
        self._target, self._name, self._returns_numbers = target, name, returns_numbers
        #: Whether it is a unit though it could not be proven pure.
        self.is_trusted = is_trusted or is_marked(target)
        #: The object that keeps this; told from one that took over its attributes.
        self.holder: Any = None
        self._states: list[_State] = []
        #: Calls that found a unit or a refusal, and calls that had to be traced.
        self.hits = 0
        self.misses = 0

    def find(self, key: Hashable, describe: Callable[[], Signature]) -> Unit | Refusal:
        """The unit of a call; `describe` is asked for its signature if it must be traced."""
        states = self._states
        if states:
            state = states[0]
            guards = state.guards
            if (guards.is_quiet and guards.checked == changes.count) or guards.hold():
                unit = state.units.get(key)
                if (
                    unit is not None
                    and unit.fetched == changes.count
                    and unit.default_device is None
                ):
                    self.hits += 1
                    return unit
                return self._in_state(state, key, describe)
        return self._in_state(self._find_state(), key, describe)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing but modules must be compared from call to call."""
        return bool(self._states) and self._states[0].guards.is_quiet

    def _find_state(self) -> _State:
        for state in self._states[1:]:
            if state.guards.hold():
                self._states = [state, *(other for other in self._states if other is not state)]
                return state
        watched, reason = self._examine()
        state = _State(Guards(watched), reason)
        self._states = [state, *self._states][:MOST_STATES]
        return state

    def _examine(self) -> tuple[Watched, str | None]:
        """What the function reads, and why it cannot be a unit."""
        target = self._target
        if isinstance(target, MethodType):
            verdict = judge(target.__func__, target.__self__)
        else:
            verdict = judge(target)
        if verdict.is_pure:
            return verdict.reads, None
        if self.is_trusted:
            return watch_all(target), None
        return verdict.reads, verdict.reason

    def _in_state(
        self, state: _State, key: Hashable, describe: Callable[[], Signature]
    ) -> Unit | Refusal:
        known = state.units.get(key)
        if known is not None and known.default_device is not None:
            device = torch.get_default_device()
            if device != known.default_device:
                key = (key, device)
                known = state.units.get(key)
        if isinstance(known, Unit):
            known = _refreshed(known)
        if known is None:
            self.misses += 1
            known = self._make(state, describe())
            if len(state.units) >= MOST_UNITS:
                state.units.pop(next(iter(state.units)))
        else:
            self.hits += 1
        known.fetched = changes.count
        state.units[key] = known
        return known

    def _make(self, state: _State, signature: Signature) -> Unit | Refusal:
        if state.reason is not None:
            return Refusal(self._name, state.reason)
        if self.is_trusted or _is_torchs_own(self._target):
            return self._trace(signature)
        kinds = tuple(map(_kind_of, signature.leaves))
        if state.values[kinds] >= MOST_VALUES:
            return Refusal(self._name, f"has other arguments than tensors, {MOST_VALUES} so far")
        state.values[kinds] += 1
        first = self._trace(signature)
        if isinstance(first, Refusal):
            return first
        calls = len(torch_calls(first.program))
        if calls > MOST_CALLS:
            state.reason = f"is long: {calls} torch calls, and {MOST_CALLS} are the most unasked"
            return Refusal(self._name, state.reason)
        again = self._trace(signature)
        if isinstance(again, Refusal):
            return again
        change = first_difference(torch_calls(first.program), torch_calls(again.program))
        return first if change is None else Refusal(self._name, f"is never the same: {change}")

    def _trace(self, signature: Signature) -> Unit | Refusal:
        numbers = self._returns_numbers
        return trace_unit(self._target, self._name, signature, returns_numbers=numbers)


def _kind_of(leaf: Any) -> Any:
    """What units of one function can have in common: tensors of a kind, whichever numbers."""
    return leaf if isinstance(leaf, InputLeaf) else type(leaf)


def _is_torchs_own(target: Any) -> bool:
    """Whether it is a module of torch with only such inside: nothing to doubt."""
    return isinstance(target, nn.Module) and all(
        type(module).__module__.split(".")[0] == "torch" for module in target.modules()
    )


def _refreshed(unit: Unit) -> Unit | None:
    """The unit with the tensors that its names lead to now; None where they do not fit."""
    tensors = unit.current_tensors()
    if tensors is None:
        return None
    if all(one is other for one, other in zip(tensors, unit.tensors, strict=True)):
        return unit
    return replace(unit, tensors=tensors, recorded=None)


def is_marked(target: Any) -> bool:
    """Whether the user said that calls of it are units."""
    function = original_of(getattr(target, "__func__", target))
    return isinstance(function, FunctionType) and MARK in function.__dict__


class _Shelf(dict[Any, UnitTraces]):
    """The units of one object's methods. Copies and pickles are empty plain dicts."""

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return {}

    def __reduce__(self) -> tuple[type[dict[Any, Any]], tuple[()]]:
        return dict, ()


def traces_of(original: Any, owner: Any) -> UnitTraces:
    """The units of a function (`owner` is None), a method, or the call of a module."""
    holder = original if owner is None else owner
    try:
        traces: UnitTraces = holder.__dict__[UNITS][original]
        if traces.holder is holder:
            return traces
    except KeyError:
        pass
    except AttributeError:
        return _refusing(original, owner)
    return add_traces(original, owner)


def add_traces(
    original: Any, owner: Any, *, is_trusted: bool = False, returns_numbers: bool = True
) -> UnitTraces:
    """New and empty units in the place of those that may be there.

    For a `ps.function`: it is trusted, and numbers that it returns become tensors.
    """
    holder = original if owner is None else owner
    space = holder.__dict__
    shelf = space.get(UNITS)
    if type(shelf) is not _Shelf or any(known.holder is not holder for known in shelf.values()):
        shelf = space[UNITS] = _Shelf()
    target, name = _target(original, owner), _name(original, owner)
    traces = shelf[original] = UnitTraces(
        target, name, is_trusted=is_trusted, returns_numbers=returns_numbers
    )
    traces.holder = holder
    return traces


def _refusing(original: Any, owner: Any) -> UnitTraces:
    """For objects that have no place to keep units."""
    traces = UnitTraces(original, _name(original, owner))
    reason = f"its object, a {type(owner).__name__}, has no __dict__"
    traces._states = [_State(Guards(Watched()), reason)]
    return traces


def _target(original: Any, owner: Any) -> Any:
    if owner is None:
        return original
    return owner if original is MODULE_CALL else MethodType(original, owner)


def _name(original: Any, owner: Any) -> str:
    if original is MODULE_CALL:
        return type(owner).__name__
    name: str = getattr(original, "__qualname__", type(original).__name__)
    return name.rpartition("<locals>.")[2]


def reached_modules(target: Any) -> list[nn.Module]:
    """The modules within reach of a callable, those inside them included."""
    return [module for _, module in Reach(target).modules]
