"""Real tensors that recorded steps read: arguments, parameters, constants, what others made.

A tensor that one instance reads is an input with a value of its own; one that several read, and
every parameter, is shared. Whoever changes a real tensor must say so before: pending steps have
read what it held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from penstock.capture.lazy.escaped import real_tensor
from penstock.capture.lazy.kinds import LazyKind, kind_of
from penstock.capture.lazy.library import Uniform, library
from penstock.capture.lazy.records import Records
from penstock.capture.lazy.tensor import LazyTensor
from penstock.capture.lazy.units import Unit
from penstock.capture.location import user_line
from penstock.errors import RecordedTensorError, report


class Entered:
    """A real tensor that steps read: of one instance, or taken for it."""

    __slots__ = ("_kind", "_value", "instance", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, kind: LazyKind, value: int, instance: int) -> None:
        self.tensor, self._kind, self._value = tensor, kind, value
        #: The instance that used it first.
        self.instance = instance
        self.version = _version(tensor)


class OutsideTensors(Records):
    """What recorded steps read from outside."""

    def __init__(self) -> None:
        super().__init__()
        #: Shared tensors that pending steps read, with the last instance that does.
        self.held: dict[int, tuple[torch.Tensor, int]] = {}
        #: The same for units that pending steps are calls of.
        self.held_units: dict[Unit, int] = {}

    def forget_records(self) -> None:
        """Begin anew, after a flush."""
        super().forget_records()
        self._entered: dict[int, Entered] = {}
        self._constants: dict[Any, Entered] = {}
        self._inputs: list[Entered] = []

    def compute_now(self) -> None:
        """Compute everything recorded so far, before any other instance goes on."""
        raise NotImplementedError

    def own(self, lazy: LazyTensor) -> Any:
        """A recorded tensor as an operand here; one of an earlier scope is real by now."""
        if lazy._scope is self:
            return lazy
        return self.enter(real_tensor(lazy))

    def enter(self, tensor: torch.Tensor) -> Uniform | Entered:
        """A real tensor as an operand."""
        if type(tensor) is nn.Parameter or library.is_shared(tensor):
            self.hold(tensor)
            return library.uniform(tensor)
        entered = self._entered.get(id(tensor))
        if entered is not None and entered.version == _version(tensor):
            if entered.instance == self.instance:
                return entered
            library.share(tensor)
            return self.enter(tensor)
        entered = self.input(tensor)
        self._entered[id(tensor)] = entered
        return entered

    def hold(self, tensor: torch.Tensor) -> None:
        """A shared tensor is read here: it must live, and stay as it is, until the flush."""
        known = self.held.get(id(tensor))
        if known is None or known[1] < self.instance:
            self.held[id(tensor)] = (tensor, self.instance)

    def row(self, tensor: torch.Tensor) -> Any:
        """A tensor as an operand with a value of its own for each instance."""
        if type(tensor) is LazyTensor:
            return self.own(tensor)
        entered = self._entered.get(id(tensor))
        if entered is None or entered.version != _version(tensor):
            entered = self._entered[id(tensor)] = self.input(tensor)
        return entered

    def input(self, tensor: torch.Tensor) -> Entered:
        """A real tensor as a new value."""
        entered = Entered(tensor, kind_of(tensor), self.next_value, self.instance)
        self.next_value += 1
        self._inputs.append(entered)
        return entered

    def constant(self, key: Any, make: Callable[[], torch.Tensor]) -> LazyTensor:
        """A recorded tensor whose contents are the same whenever the key is."""
        entered = self._constants.get(key)
        if entered is None:
            entered = self._constants[key] = self.input(make())
        return self.lazy(entered._kind, entered._value)

    def known_constant(self, key: Any) -> LazyTensor | None:
        """A constant that was made before."""
        entered = self._constants.get(key)
        return None if entered is None else self.lazy(entered._kind, entered._value)

    def wrap(self, tensor: torch.Tensor) -> LazyTensor:
        """A real tensor as a recorded one."""
        entered = self.input(tensor)
        return self.lazy(entered._kind, entered._value)

    def keep_contents(self, tensor: torch.Tensor) -> None:
        """A real tensor is about to change: pending steps have read what it holds now."""
        entered = self._entered.pop(id(tensor), None)
        if entered is not None:
            self._check_order(tensor, entered.instance)
            with torch.enable_grad():
                entered.tensor = entered.tensor.clone()
            entered.version = _version(entered.tensor)
        if id(tensor) in self.held:
            self._check_order(tensor, self.held[id(tensor)][1])
            self.compute_now()
        for unit, last in tuple(self.held_units.items()):
            if any(tensor is known for known in unit.tensors):
                self._check_order(tensor, last)
                self.compute_now()

    def _check_order(self, tensor: torch.Tensor, last: int) -> None:
        """Refuse a change that an instance after this one should have seen before it read."""
        if last > self.instance:
            raise RecordedTensorError(
                report(
                    "A tensor from outside is changed after a later instance has read it.",
                    where=user_line(),
                    facts=[
                        (f"instance {self.instance}", f"changes {kind_of(tensor)}"),
                        (f"instance {last}", "has read it already, while others waited"),
                    ],
                    todo="Keep such state in the instance, or change it after the map.",
                )
            )

    def grouped_inputs(self) -> tuple[Any, list[list[torch.Tensor]]]:
        """The new inputs by how they are stored: their values, and the tensors."""
        groups: dict[Any, list[Entered]] = {}
        for entered in self._inputs:
            if entered.version != _version(entered.tensor):
                raise _changed(entered)
            groups.setdefault(entered._kind.stored, []).append(entered)
        numbers = tuple(
            (stored, np.array([entered._value for entered in group], np.int64))
            for stored, group in groups.items()
        )
        return numbers, [[entered.tensor for entered in group] for group in groups.values()]


def _version(tensor: torch.Tensor) -> int:
    """How often a tensor has been changed in place; asked of torch itself, not of the recording."""
    with torch._C.DisableTorchFunction():
        return 0 if tensor.is_inference() else tensor._version


def _changed(entered: Entered) -> RecordedTensorError:
    return RecordedTensorError(
        report(
            "A tensor was changed in place after a recorded step has read it.",
            where=user_line(),
            facts=[
                (f"instance {entered.instance}", f"read {entered._kind}"),
                ("since then", "changed by code that was not recorded"),
            ],
            todo="Change a clone of it, or change it after the map.",
        )
    )
