"""The tape of a run: what was launched and what each launch left for its backward half, in order.

A page is what one launch saved. Pages own their memory: a value that is only a view of an arena is copied, because
the arena's slots are used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from penstock.autodiff.joint import TrainingForm, named_sizes
from penstock.ir.graph import Wire
from penstock.plan.schedule import Copy, Launch, Store
from penstock.run.blocks import RunnableBlock
from penstock.run.engine import Run


@dataclass(slots=True, eq=False)
class Page:
    """One launch with what its backward half needs."""

    launch: Launch
    block: RunnableBlock
    #: None where no operand is differentiable.
    form: TrainingForm | None
    saved: list[torch.Tensor] = field(default_factory=list)
    sizes: tuple[int, ...] = ()
    #: Rows whose backward half has run.
    consumed: np.ndarray | None = None  # type: ignore[type-arg]


@dataclass(slots=True, eq=False)
class Tape:
    """All that a backward pass reads of a run."""

    wires: frozenset[Wire]
    entries: list[Page | Copy | Store] = field(default_factory=list)


class TapedRun(Run):
    """A run that leaves a tape."""

    tape: Tape

    def _launch(self, launch: Launch) -> None:
        block = self.executable.blocks[launch.block]
        operands = [
            position
            for position, wire in enumerate(block.node.inputs)
            if wire in self.tape.wires and wire.home != "host"
        ]
        results = [k for k, wire in enumerate(block.node.outputs) if wire in self.tape.wires]
        if not operands or not results:
            super()._launch(launch)
            self.tape.entries.append(Page(launch, block, None))
            return
        self._launch_taped(launch, block, operands, results)

    def _store(self, item: Store) -> None:
        super()._store(item)
        self.tape.entries.append(item)

    def _copy(self, item: Copy) -> None:
        super()._copy(item)
        self.tape.entries.append(item)

    def _launch_taped(
        self, launch: Launch, block: RunnableBlock, operands: list[int], results: list[int]
    ) -> None:
        arguments = self.arguments(launch, block)
        form = training_form(block, arguments, operands, results)
        sizes = form.sizes(arguments)
        with self.naming_launch(block, arguments):
            tensors = [item for item in arguments if isinstance(item, torch.Tensor)]
            outputs = form.forward(launch.rows, *tensors, *sizes)
        self.store(launch, block, outputs[: form.output_count])
        saved = [self._owned(values) for values in outputs[form.output_count :]]
        self.tape.entries.append(Page(launch, block, form, saved, sizes))

    def _owned(self, values: torch.Tensor) -> torch.Tensor:
        """The values in memory that nobody writes to."""
        place = values.untyped_storage().data_ptr()
        is_view = any(place in arena.recycled for arena in self.arenas)
        return values.clone() if is_view else values


def training_form(
    block: RunnableBlock,
    arguments: Sequence[torch.Tensor | int],
    operands: list[int],
    results: list[int],
) -> TrainingForm:
    """The form of a block that saves what the gradients of these operands need."""
    sizes = named_sizes(block.inputs, arguments)
    batched = block.form(block.dynamic_sizes(arguments))
    is_general = batched.is_general and () in block.forms and min(sizes.values(), default=2) > 1
    fixed = None if is_general or not sizes else sizes
    key = (tuple(operands), tuple(results), None if fixed is None else tuple(fixed.items()))
    forms: dict[object, TrainingForm] = block.training_forms
    if key not in forms:
        function = batched.form_for(arguments)
        forms[key] = TrainingForm(function, block.inputs, operands, results, block.name, fixed)
    return forms[key]
