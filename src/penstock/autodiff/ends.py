"""Both ends of a tape: where cotangents of outputs go in, and where gradients of inputs come out.

A backward pass knows the rest from the tape alone. `CallEnds` are those of a call of a program;
recorded steps have others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Protocol

import torch

from penstock.autodiff.call import DifferentiableCall, Place, chosen
from penstock.autodiff.gradients import add_gradients
from penstock.autodiff.reverse import Reversal
from penstock.autodiff.tape import Entry, Taping
from penstock.autodiff.uniforms import UniformGraph, capture_gradients
from penstock.autodiff.versions import check_version
from penstock.autodiff.way_back import WayBack
from penstock.calls.autocast import autocast_as
from penstock.ir.graph import Input
from penstock.plan.schedule import Integers
from penstock.run.inputs import tensors_of

#: The arena and the slots of some values, and the values.
Located = tuple[int, Integers, torch.Tensor]
FindUniform = Callable[[int], torch.Tensor]


class Ends(Protocol):
    """What a backward pass must know beside the tape."""

    @property
    def run(self) -> Taping:
        """The run that left the tape."""

    @property
    def is_one_of_several(self) -> bool:
        """Whether other nodes may go through the same rows, so that none uses them up."""

    @property
    def entries(self) -> Sequence[Entry]:
        """The tape up to the time at which the outputs were taken."""

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """The tensors whose gradients are asked for."""

    def cotangents(self, grads: Sequence[torch.Tensor | None]) -> list[Located]:
        """The cotangents of outputs, where there are any."""

    @property
    def keeps_ways(self) -> bool:
        """Whether the way of this backward pass may serve others."""

    def known_way(self, grads: Sequence[torch.Tensor | None]) -> WayBack | None:
        """The way of an earlier backward pass, if it serves this one."""

    def keep_way(self, grads: Sequence[torch.Tensor | None], way: WayBack | None) -> None:
        """Remember the way of a backward pass for later ones."""

    def gradients(self, reversal: Reversal) -> list[torch.Tensor | None]:
        """The gradient of each tensor after a reversal; None where no cotangent has come."""

    def uniforms(self, tensors: Sequence[torch.Tensor]) -> FindUniform:
        """How to find uniform values, given others in the place of `tensors`."""

    def inputs(self, tensors: Sequence[torch.Tensor], uniform: FindUniform) -> Iterable[Located]:
        """The values that were there from the start, given others in the place of `tensors`."""


class CallEnds:
    """Both ends of a call of a program."""

    is_one_of_several = False

    def __init__(self, made: DifferentiableCall) -> None:
        self.made = made
        self.run = made.run
        self.tensors = made.tensors

    @property
    def entries(self) -> Sequence[Entry]:
        """The tape."""
        return self.run.tape.entries

    def cotangents(self, grads: Sequence[torch.Tensor | None]) -> list[Located]:
        """The cotangents of outputs, where there are any."""
        return self.made.cotangents(grads)

    # ---- the way back ----------------------------------------------------------------------------

    @property
    def keeps_ways(self) -> bool:
        """Whether the plan is kept, and has not got many ways yet."""
        return self.run.kept is not None and self.run.kept.takes_ways

    def known_way(self, grads: Sequence[torch.Tensor | None]) -> WayBack | None:
        """The way of an earlier backward pass through the same plan from the same outputs."""
        plan = self.run.kept
        return None if plan is None else plan.ways.get(self._way(grads))

    def keep_way(self, grads: Sequence[torch.Tensor | None], way: WayBack | None) -> None:
        """Remember a way with the plan that it goes through."""
        if self.run.kept is not None and way is not None:
            self.run.kept.ways[self._way(grads)] = way

    def _way(self, grads: Sequence[torch.Tensor | None]) -> Hashable:
        flowing = zip(self.made.flowing, grads, strict=True)
        places = tuple(place for place, grad in flowing if grad is not None)
        reached = self.made.reached
        about = None if reached is None else reached.tobytes()
        return self.run.wires, self.run.saves_rows, self.run.division, about, places

    # ---- gradients -------------------------------------------------------------------------------

    def gradients(self, reversal: Reversal) -> list[torch.Tensor | None]:
        """The gradient of each tensor of the call; None where no cotangent has come."""
        made = self.made
        inputs: dict[int, int] = {}
        for position, entry in enumerate(made.executable.graph.inputs):
            if entry.slot is None or entry.slot not in made.run.wires:
                continue
            if entry.number is not None:
                inputs[entry.number] = position
            else:
                self._add_shared(reversal, position, entry)
        captured = capture_gradients(made, reversal.uniform_gradients)
        return [
            captured.get(place.capture)
            if place.capture is not None
            else self._column_gradient(reversal, tensor, place, inputs)
            for tensor, place in zip(made.tensors, made.places, strict=True)
        ]

    def _column_gradient(
        self,
        reversal: Reversal,
        tensor: torch.Tensor,
        place: Place,
        inputs: dict[int, int],
    ) -> torch.Tensor | None:
        if place.column is None or place.column not in inputs:
            return None
        where = self.run.outcome.input(inputs[place.column])
        gradient = reversal.gradient_of(*where.of(chosen(place.instance)))
        return None if gradient is None else gradient.reshape(tensor.shape).clone()

    def _add_shared(self, reversal: Reversal, position: int, entry: Input) -> None:
        """The gradient of a uniform value that had one slot for all rows."""
        assert entry.uniform is not None
        gradient = reversal.gradient_of(*self.run.outcome.input(position).of(chosen(0)))
        if gradient is not None:
            number = entry.uniform.number
            known = reversal.uniform_gradients.get(number)
            reversal.uniform_gradients[number] = add_gradients(known, gradient[0].clone())

    # ---- the values at the start -----------------------------------------------------------------

    def uniforms(self, tensors: Sequence[torch.Tensor]) -> FindUniform:
        """How to find uniform values, given others in the place of the call's tensors."""
        for number, version in self.run.versions.items():
            check_version(self.run.uniform(number), version)
        named = zip(self.made.places, tensors, strict=True)
        captures = {p.capture: tensor for p, tensor in named if p.capture is not None}
        graph = UniformGraph(self.run, captures)

        def find(number: int) -> torch.Tensor:
            with autocast_as(self.made.executable.autocast):
                return graph.value(number)

        return find

    def inputs(self, tensors: Sequence[torch.Tensor], uniform: FindUniform) -> Iterator[Located]:
        """The call's inputs, and uniform values that have slots."""
        named = zip(self.made.places, tensors, strict=True)
        columns = {(p.column, p.instance): tensor for p, tensor in named}
        for position, entry in enumerate(self.made.executable.graph.inputs):
            where = self.run.outcome.inputs[position]
            if where is None:
                continue
            if entry.number is None:
                assert entry.uniform is not None
                yield *where.of(chosen(0)), uniform(entry.uniform.number).unsqueeze(0)
                continue
            self._check_column(entry.number)
            for instance in range(self.made.count):
                values = self._input(columns, entry.number, instance)
                yield *where.of(chosen(instance)), values

    def _check_column(self, number: int) -> None:
        tensors = tensors_of(self.made.columns[number])
        for tensor, version in zip(tensors, self.made.versions[number], strict=True):
            check_version(tensor, version)

    def _input(
        self,
        columns: dict[tuple[int | None, int | None], torch.Tensor],
        column: int,
        instance: int,
    ) -> torch.Tensor:
        whole = columns.get((column, None))
        if whole is not None:
            return whole[instance]
        own = columns.get((column, instance))
        return self.made.columns[column][instance] if own is None else own
