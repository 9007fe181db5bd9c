"""The tape of a run: what was launched and what each launch left for its backward half, in order.

A page is what one launch saved. Pages own their memory: a value that is only a view of an arena is
copied, because the arena's slots are used again.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from penstock.autodiff.fallback import AutogradForm
from penstock.autodiff.joint import TrainingForm, named_sizes
from penstock.autodiff.torch_engine import without_modes
from penstock.errors import PenstockWarning
from penstock.ir.graph import Wire
from penstock.plan.schedule import Copy, Integers, Launch, Store
from penstock.run.batched.emit import BatchFunction
from penstock.run.blocks import RunnableBlock
from penstock.run.engine import Run
from penstock.run.recording import building


@dataclass(slots=True, eq=False)
class Page:
    """One launch with what its backward half needs."""

    launch: Launch
    block: RunnableBlock
    #: None where no operand is differentiable.
    form: TrainingForm | AutogradForm | None
    saved: list[torch.Tensor] = field(default_factory=list)
    #: The version of each saved value: some are the caller's own tensors.
    versions: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    #: For each row the instance it belongs to.
    instances: Integers | None = None
    #: Rows whose backward half has run, and will not run again.
    consumed: npt.NDArray[np.bool_] | None = None

    @property
    def rows(self) -> int:
        """How many rows were launched."""
        return self.launch.rows

    def use(self, index: Integers | None, *, is_last: bool) -> None:
        """Make sure that some rows (None: all) can still go backward; `is_last`: for the last
        time.
        """
        chosen = slice(None) if index is None else index
        if self.consumed is not None and self.consumed[chosen].any():
            raise RuntimeError(
                "Trying to backward through the graph a second time (or directly access saved "
                "tensors after they have already been freed). Specify retain_graph=True if you "
                "need to backward through the graph a second time."
            )
        if is_last:
            if self.consumed is None:
                self.consumed = np.zeros(self.rows, np.bool_)
            self.consumed[chosen] = True

    def release(self) -> None:
        """Drop the saved values if no row will need them again."""
        if self.consumed is not None and self.consumed.all():
            self.saved = []

    def read_saved(self, position: int) -> torch.Tensor:
        """A saved value, unless it has been changed since."""
        values = self.saved[position]
        check_version(values, self.versions[position])
        return values


@dataclass(slots=True, eq=False)
class Tape:
    """All that a backward pass reads of a run."""

    wires: frozenset[Wire]
    entries: list[Page | Copy | Store] = field(default_factory=list)


class TapedRun(Run):
    """A run that leaves a tape."""

    tape: Tape
    #: The version of each uniform value at the end of the run.
    versions: dict[int, int]

    def finish(self) -> None:
        """Let go of what backward does not need: values live on in pages only."""
        self.arenas = []
        self.versions = {number: version_of(value) for number, value in self.uniforms.items()}

    def read_uniform(self, number: int) -> torch.Tensor:
        """A uniform value, unless it has been changed since."""
        values = self.uniform(number)
        if number in self.versions:
            check_version(values, self.versions[number])
        return values

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
        with self.naming_launch(block, arguments) as instances:
            tensors = [item for item in arguments if isinstance(item, torch.Tensor)]
            outputs = form.forward(launch.rows, *tensors, *sizes)
        results_made = outputs[: form.output_count]
        self.check(launch, block, arguments, results_made, instances)
        self.store(launch, block, results_made)
        saved = [self._owned(values) for values in outputs[form.output_count :]]
        versions = tuple(map(version_of, saved))
        self.tape.entries.append(Page(launch, block, form, saved, versions, sizes, instances))

    def _owned(self, values: torch.Tensor) -> torch.Tensor:
        """The values in memory that nobody writes to."""
        place = values.untyped_storage().data_ptr()
        is_view = any(place in arena.recycled for arena in self.arenas)
        return values.clone() if is_view else values


def version_of(values: torch.Tensor) -> int:
    """How often a tensor has been changed in place; tensors made in inference mode do not count."""
    return 0 if values.is_inference() else values._version


def check_version(values: torch.Tensor, version: int) -> None:
    """Raise torch's error if a tensor has been changed in place."""
    if version_of(values) != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an "
            f"inplace operation: [{values.type()} {list(values.shape)}] is at version "
            f"{values._version}; expected version {version} instead."
        )


def training_form(
    block: RunnableBlock,
    arguments: Sequence[torch.Tensor | int],
    operands: list[int],
    results: list[int],
) -> TrainingForm | AutogradForm:
    """The form of a block that saves what the gradients of these operands need."""
    sizes = named_sizes(block.inputs, arguments)
    batched = block.form(block.dynamic_sizes(arguments))
    is_general = batched.is_general and () in block.forms and min(sizes.values(), default=2) > 1
    fixed = None if is_general or not sizes else sizes
    key = (tuple(operands), tuple(results), None if fixed is None else tuple(fixed.items()))
    forms: dict[object, TrainingForm | AutogradForm] = block.training_forms
    if key not in forms:
        function = batched.form_for(arguments)
        with building(), without_modes():
            forms[key] = _build(block, function, operands, results, fixed, bool(batched.unbatched))
    return forms[key]


def _build(
    block: RunnableBlock,
    function: BatchFunction,
    operands: list[int],
    results: list[int],
    fixed: dict[str, int] | None,
    is_row_loop: bool,
) -> TrainingForm | AutogradForm:
    """The joint form, or where there is none a form that runs the block again."""
    if not is_row_loop:
        try:
            return TrainingForm(function, block.inputs, operands, results, block.name, fixed)
        except Exception as error:  # torch inside a trace may raise anything
            reason = f"{type(error).__name__}: {error}"
            what = f"block {block.name!r} is run again in backward: its derivative has no trace"
            warnings.warn(f"{what} ({reason})", PenstockWarning, stacklevel=2)
    return AutogradForm(function, block.inputs, operands, results, len(block.block.results))
