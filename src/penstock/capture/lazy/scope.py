"""A recording scope: the steps of eager code, kept in flat lists until somebody needs a value.

A scope belongs to one thread. Steps are appended in the order in which user code makes them, by a
short way for calls that were seen before. How values are computed is said in `computed_values.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from penstock.calls.autocast import current_autocast
from penstock.calls.replay import fill
from penstock.calls.structure import flatten
from penstock.calls.torch_names import name_of, resolve
from penstock.capture.lazy.call_keys import PLAIN, CallKey, Unhashable
from penstock.capture.lazy.calls import CannotTry, learn_step
from penstock.capture.lazy.changes import change_in_place
from penstock.capture.lazy.computed_values import ComputedValues
from penstock.capture.lazy.fallback import call_for_real, call_on_real
from penstock.capture.lazy.kinds import LazyKind
from penstock.capture.lazy.library import Step, library
from penstock.capture.lazy.mode import RecordingMode
from penstock.capture.lazy.rules import known_rules, rule_for
from penstock.capture.lazy.tensor import LazyTensor
from penstock.capture.lazy.unit_recording import UnitHook
from penstock.ir.program import TorchCall
from penstock.run.seeds import Seed

#: So many different numbers are part of the step kind of an operator; any more are operands.
MOST_NUMBERS = 3
_NUMERIC = frozenset(
    getattr(torch.Tensor, f"__{prefix}{name}__")
    for name in ("add", "sub", "mul", "truediv")
    for prefix in ("", "r")
)
#: Types for which a number and a tensor that holds it give the same result.
_EXACT = frozenset([torch.float32, torch.float64])

_is_grad_enabled = torch.is_grad_enabled
_is_any_autocast_enabled = torch._C._is_any_autocast_enabled


class Scope(ComputedValues):
    """The steps recorded by one thread."""

    def __init__(self, granularity: str, policy: str, seed: Seed, recorder: Any = None) -> None:
        super().__init__(granularity, policy, seed, recorder)
        #: Whether steps can still be recorded, and whether user code is at work.
        self.is_open, self.is_recording = True, False
        self.mode = RecordingMode(self)
        #: How many function modes are active while user code runs.
        self.function_modes = 0
        #: Asked about calls that could be recorded as one step.
        self.units = UnitHook(self)
        #: Calls that run one instance at a time, with the reason.
        self.unrecorded: dict[str, Exception | None] = {}

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """What user code gets for a torch call."""
        try:
            rule = known_rules[function]
        except KeyError:
            rule = rule_for(function)
        if rule is not None:
            return rule(self, function, args, kwargs)
        if kwargs and "out" in kwargs:
            return change_in_place(self, function, args, kwargs)
        return self.record(function, args, kwargs)

    def record(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Record a call that computes something; calls seen before take a short way."""
        parts: list[Any] = [function]
        values: list[int] = []
        for item in args:
            kind = type(item)
            if kind is LazyTensor and item._scope is self and item._value not in values:
                parts.append(item._kind)
                values.append(item._value)
            elif kind in PLAIN:
                parts.append(kind)
                parts.append(item)
            elif kind is tuple or kind is list:
                parts += (kind, len(item))
                for inner in item:
                    if type(inner) is not LazyTensor or inner._scope is not self:
                        return self._record_any(function, args, kwargs)
                    if inner._value in values:
                        return self._record_any(function, args, kwargs)
                    parts.append(inner._kind)
                    values.append(inner._value)
            else:
                return self._record_any(function, args, kwargs)
        for name, item in kwargs.items():
            if type(item) not in PLAIN:
                return self._record_any(function, args, kwargs)
            parts += (name, type(item), item)
        parts.append(_is_grad_enabled())
        if _is_any_autocast_enabled():
            parts.append(current_autocast())
        step = library.steps.get(tuple(parts))
        if step is None:
            return self._record_any(function, args, kwargs)
        if step.single is not None and not step.draws:
            return self.add_single(step, values)
        if step.is_one_view:
            return self.add_view(step, args[0])
        return self._record_any(function, args, kwargs)

    def _record_any(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return self.call_on_real(function, args, kwargs)  # inside a transform of torch.func
        found = CallKey(self, function)
        try:
            key = found.full_key(args, kwargs)
            step = library.steps.get(key)
        except Unhashable:
            return call_for_real(self, function, args, kwargs)
        if step is None:
            try:
                step = learn_step(self, function, args, kwargs, found)
            except CannotTry as problem:
                return call_for_real(self, function, args, kwargs, problem.error)
            library.steps[key] = step
        return self.add(step, found.operands, found.values)

    def learn_operator(
        self, key: Any, function: Callable[..., Any], first: LazyTensor, other: Any
    ) -> Any:
        """Record an operator, and remember its step for the short way."""
        if type(other) is not LazyTensor and self._has_many_numbers(function, first._kind):
            number = first._kind, other
            made = self.constant(("number", *number), lambda: _as_operand(*number))
            return function(first, made)
        count = len(self.kinds)
        result = function(first, other)
        if type(result) is LazyTensor and len(self.kinds) == count + 1 and first is not other:
            step = Step(self.kinds[-1], 1, result._kind)
            if result._view is None and result._value == self.next_value - 1:
                library.operators[key] = step
        return result

    def _has_many_numbers(self, function: Callable[..., Any], kind: LazyKind) -> bool:
        """Whether an operator meets so many different numbers that they should be operands."""
        if function not in _NUMERIC or kind.dtype not in _EXACT:
            return False
        met = library.numbers[function, kind] = library.numbers.get((function, kind), 0) + 1
        return met > MOST_NUMBERS

    def close(self) -> None:
        """Record no more; keep the values of tensors that are alive."""
        self.is_open = self.is_recording = False
        self.waits = None
        if self.recorder is not None:
            self.recorder.record.notes += self._notes()
        alive = self.alive()
        self.lazies = []
        self.forget_records()
        if self.failure is not None:
            self.run.finish()
            return
        self.survivors = [weakref.ref(lazy) for lazy in alive]
        self.run.finish(np.array([lazy._value for lazy in alive], np.int64))

    def _notes(self) -> list[str]:
        """What an explanation tells about calls that were not simply recorded."""
        notes = []
        for name, reason in self.unrecorded.items():
            why = "it changes what instances share" if reason is None else str(reason)
            notes.append(f"{name} ran one instance at a time: {why.splitlines()[0]}")
        lines = self.units.report.lines()
        if lines:
            notes.append("Functions and modules:\n" + "\n".join(f"  {line}" for line in lines))
        return notes

    def call_on_real(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """A call with ordinary tensors in the place of recorded ones."""
        return call_on_real(self, function, args, kwargs)

    def view_again(self, call: TorchCall, parent: LazyTensor, leaf: int) -> LazyTensor:
        """A view made anew, after its parent has changed."""
        kwargs = {name: fill(item, [parent]) for name, item in call.kwargs}
        made, _ = flatten(self.record(resolve(call.name), fill(call.args, [parent]), kwargs))
        lazy: LazyTensor = made[leaf]
        return lazy

    def note_unrecorded(self, function: Any, reason: Exception | None) -> None:
        """Remember, for the explanation, a call that runs one instance at a time."""
        name = function.__qualname__ if isinstance(function, type) else name_of(function)
        self.unrecorded.setdefault(name, reason)


def _as_operand(kind: LazyKind, number: float) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        return torch.tensor(number, dtype=kind.dtype, device=kind.device)
