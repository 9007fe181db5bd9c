"""The steps recorded since the last flush, in flat lists, and the tensors that stand for results.

Steps are appended in the order in which user code makes them, so operands come before those who
read them. Appending is where recording spends its time: nothing is looked at here but numbers.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from penstock.calls.structure import unflatten
from penstock.capture.lazy.kinds import LazyKind
from penstock.capture.lazy.library import Leaf, Step, Uniform
from penstock.capture.lazy.tensor import LazyTensor, make_tensor
from penstock.plan.schedule import Integers


class Records:
    """What has been recorded and not yet computed."""

    def __init__(self) -> None:
        #: The instance that runs, and how many random draws each has made.
        self.instance = 0
        #: For each instance that one outside of it, of the map around all, which began it.
        self.roots: list[int] = []
        self._draws: dict[int, int] = {}
        self.next_value = 0
        #: Tensors made since the last flush, and older ones that were alive then.
        self.lazies: list[LazyTensor] = []
        self.forget_records()

    def forget_records(self) -> None:
        """Begin anew, after a flush."""
        #: For each step its kind and its first result; the values that the steps take.
        self.kinds: list[int] = []
        self.results: list[int] = []
        self.operands: list[int] = []
        #: Where another instance begins to record: (number of the record, instance).
        self._segments: list[tuple[int, int]] = [(0, self.instance)]
        #: Steps that draw random numbers: (number of the record, draws made before).
        self.drawing: list[tuple[int, int]] = []

    def add(self, step: Step, operands: Sequence[Any], values: Sequence[int]) -> Any:
        """Append a step and return what it returns."""
        if step.draws:
            self._draw(step)
        if step.single is not None:
            return self.add_single(step, values)
        first = self.next_value
        if step.number >= 0:
            self.next_value = first + step.count
            self.kinds.append(step.number)
            self.results.append(first)
            self.operands.extend(values)
        leaves = [
            self._leaf(step, leaf, number, operands, first) if type(leaf) is Leaf else leaf
            for number, leaf in enumerate(step.leaves)
        ]
        if step.build is not None:
            return step.build(leaves)
        assert step.structure is not None
        return unflatten(step.structure, leaves)

    def add_single(self, step: Step, values: Sequence[int]) -> LazyTensor:
        """Append a step that returns one new tensor."""
        value = self.next_value
        self.next_value = value + 1
        self.kinds.append(step.number)
        self.results.append(value)
        self.operands.extend(values)
        kind = step.single
        lazy: LazyTensor = make_tensor(LazyTensor, kind.prototype)  # type: ignore[union-attr]
        lazy._kind, lazy._value, lazy._scope = kind, value, self  # type: ignore[assignment]
        self.lazies.append(lazy)
        return lazy

    def add_view(self, step: Step, parent: LazyTensor) -> LazyTensor:
        """Append a step that returns one view of its only operand."""
        leaf: Leaf = step.leaves[0]
        value = parent._value
        if step.number >= 0:
            self.kinds.append(step.number)
            self.operands.append(value)
            value = self.next_value
            self.results.append(value)
            self.next_value = value + 1
        lazy = self.lazy(leaf.kind, value)
        share_memory(lazy, parent, step, 0)
        return lazy

    def _draw(self, step: Step) -> None:
        drawn = self._draws.get(self.instance, 0)
        self.drawing.append((len(self.kinds), drawn))
        self._draws[self.instance] = drawn + step.draws

    def _leaf(
        self, step: Step, leaf: Leaf, number: int, operands: Sequence[Any], first: int
    ) -> torch.Tensor:
        parent = operands[leaf.operand] if leaf.operand is not None else None
        if leaf.is_same:
            return parent if type(parent) is LazyTensor else _original(parent)
        value = parent._value if leaf.result is None else first + leaf.result  # type: ignore[union-attr]
        lazy = self.lazy(leaf.kind, value)
        if leaf.view_of is not None and type(operands[leaf.view_of]) is LazyTensor:
            share_memory(lazy, operands[leaf.view_of], step, number)
        return lazy

    def lazy(self, kind: LazyKind, value: int) -> LazyTensor:
        """A recorded tensor for a value."""
        lazy: LazyTensor = make_tensor(LazyTensor, kind.prototype)
        lazy._kind, lazy._value, lazy._scope = kind, value, self  # type: ignore[assignment]
        self.lazies.append(lazy)
        return lazy

    def switch(self, instance: int) -> None:
        """Another instance records from now on."""
        self.instance = instance
        if self._segments[-1][0] == len(self.kinds):
            self._segments.pop()
        self._segments.append((len(self.kinds), instance))

    def new_instances(self, count: int, *, inside: bool = False) -> range:
        """Numbers for so many instances; those of a map inside an instance belong to it."""
        numbers = range(len(self.roots), len(self.roots) + count)
        root = self.roots[self.instance] if inside else None
        self.roots.extend(number if root is None else root for number in numbers)
        return numbers

    def instances(self) -> Integers:
        """The instance of each step."""
        starts = [start for start, _ in self._segments]
        counts = np.diff([*starts, len(self.kinds)])
        return np.repeat([instance for _, instance in self._segments], counts)

    def draw_numbers(self) -> Integers:
        """For each step, how many random draws its instance had made before it."""
        draws = np.zeros(len(self.kinds), np.int64)
        for record, number in self.drawing:
            draws[record] = number
        return draws


def _original(operand: Any) -> torch.Tensor:
    found: torch.Tensor = operand.fetch() if type(operand) is Uniform else operand.tensor
    return found


def share_memory(lazy: LazyTensor, parent: LazyTensor, step: Step, leaf: int) -> None:
    """Note that `lazy` is a view of `parent`."""
    root = parent if parent._root is None else parent._root
    lazy._view, lazy._root = (parent, step, leaf), root
    if root._shares is None:
        root._shares = []
    root._shares.append(weakref.ref(lazy))
