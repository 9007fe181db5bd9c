"""What one launch leaves for its backward half: a page of the tape.

A page owns its memory: a value that is only a view of an arena was copied before it was saved,
because the arena's slots are used again. Each row goes backward once, unless the graph is retained,
and what no row needs any more is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from penstock.autodiff.contract import WINDOW, Contraction
from penstock.autodiff.fallback import AutogradForm
from penstock.autodiff.forms import Form
from penstock.autodiff.joint import Backward, Pattern, TrainingForm
from penstock.autodiff.opaque import KeptGraph
from penstock.autodiff.versions import check_version, version_of
from penstock.plan.schedule import Integers, Launch
from penstock.run.blocks import RunnableBlock
from penstock.run.fused.indices import Indices
from penstock.run.launch_graphs import Layout
from penstock.run.memory.read_ahead import ReadAhead

#: What a backward half gives, and for each differentiated operand where its gradient is in it.
HalfResults = tuple[Sequence[torch.Tensor | None], Sequence[int | Contraction | None]]


@dataclass(slots=True, eq=False)
class Page:
    """One launch with what its backward half needs."""

    launch: Launch
    block: RunnableBlock
    #: The operands whose gradients may be asked for and the results that may have cotangents; none
    #: where the launch leaves nothing for backward.
    operands: Sequence[int] = ()
    results: Sequence[int] = ()
    #: None where the launch leaves nothing, or leaves a graph.
    form: Form | None = None
    #: What torch's autograd has recorded, for a block that is taken as it is.
    graph: KeptGraph | None = None
    saved: list[torch.Tensor] = field(default_factory=list)
    #: Where only distinct rows were computed, for each row which of them it is, and how many there
    #: are: what is saved is theirs.
    distinct: tuple[torch.Tensor, int] | None = None
    #: The version of each saved value, as some are the caller's own tensors; none where all were
    #: made by the launch and nobody else knows of them.
    versions: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    #: For each row the instance it belongs to.
    instances: Integers | None = None
    #: Rows whose backward half has run, and will not run again; True stands for all.
    consumed: npt.NDArray[np.bool_] | Literal[True] | None = None
    #: The slots of the launch on their devices.
    indices: Indices | None = None
    #: Whether it is known that no slot is read and written.
    is_apart: bool = False
    #: Whether the saved values are those of a CUDA graph, which later runs write anew.
    is_lasting: bool = False
    #: Whether its halves may run as CUDA graphs of their own.
    is_graphed: bool = False
    #: How saved values lie in what a graph has left; None where each is a tensor of its own.
    layout: Layout | None = None
    #: Brings rows of the host to their device, for graphs.
    ahead: ReadAhead | None = None

    @property
    def rows(self) -> int:
        """How many rows were launched."""
        return self.launch.rows

    @property
    def computed_rows(self) -> int:
        """How many rows were computed, of which values are saved."""
        return self.rows if self.distinct is None else self.distinct[1]

    def owner(self) -> str:
        """Whose values these are, for errors."""
        source = self.block.node.source
        text = f"values that block {self.block.name} has saved for {self.rows:,} rows"
        return text if source is None else f"{text}, at {source}"

    def save(self, values: Sequence[torch.Tensor], *, is_own: bool = False) -> None:
        """Keep values, which nobody else writes to; `is_own`: nobody else knows of them."""
        self.saved = list(values)
        self.versions = () if is_own else tuple(map(version_of, values))

    def spread(self) -> None:
        """Have a row of the saved values for each row of the launch, where distinct rows share
        them.
        """
        if self.distinct is not None and self.saved:
            assert self.form is not None
            which, count = self.distinct
            pairs = zip(self.form.saved, map(self.read_saved, range(len(self.saved))), strict=True)
            self.save([saved.select(values, count, which) for saved, values in pairs])
        self.distinct = None

    def use(self, index: Integers | None, *, is_last: bool) -> None:
        """Make sure that some rows (None: all) can still go backward; `is_last`: for the last
        time.
        """
        chosen = slice(None) if index is None else index
        used = self.consumed
        if used is True or (used is not None and used[chosen].any()):
            raise second_backward()
        if is_last and index is None:
            self.consumed = True
        elif is_last:
            if used is None:
                used = self.consumed = np.zeros(self.rows, np.bool_)
            used[chosen] = True

    @property
    def is_used_up(self) -> bool:
        """Whether no row can go backward again."""
        used = self.consumed
        return used is not None and (used is True or bool(used.all()))

    def release(self) -> None:
        """Drop the saved values if no row will need them again."""
        if not self.is_lasting and self.is_used_up:
            self.saved, self.graph = [], None

    def needs_saved(self, pattern: Pattern) -> bool:
        """Whether backward reads anything that can be used up."""
        if self.form is None:
            return True
        backward = self.form.backward(pattern)
        return bool(backward.saved or backward.uniforms)

    def reached(self, pattern: Pattern) -> tuple[int | None, ...]:
        """For each operand where the backward half says which rows have a gradient, if it does."""
        told = () if self.form is None else self.form.backward(pattern).reached
        return told or (None,) * len(self.operands)

    def is_repeatable(self, pattern: Pattern) -> bool:
        """Whether cotangents alone decide which operands have gradients: not where torch's own
        autograd finds it out, and not where it depends on values.
        """
        if self.form is None or isinstance(self.form, AutogradForm):
            return False
        return all(place is None for place in self.reached(pattern))

    def go_back(
        self,
        pattern: Pattern,
        index: Integers | None,
        cotangents: Sequence[torch.Tensor],
        read_uniform: Callable[[int], torch.Tensor],
    ) -> HalfResults:
        """Run the backward half of some rows (None: all), given cotangents of these results."""
        if self.form is None:
            assert self.graph is not None
            return self.graph.gradients(pattern, index, cotangents), range(len(self.operands))
        backward = self.form.backward(pattern)
        wires = [self.launch.operands[k].wire for k in backward.uniforms]  # type: ignore[union-attr]
        uniforms = [read_uniform(wire) for wire in wires]
        if index is None and self.is_graphed:
            results = self._replay_back(pattern, backward, uniforms, cotangents)
            if results is not None:
                return results, backward.gradients
        saved = [self._read_rows(k, index) for k in backward.saved]
        rows = self.rows if index is None else len(index)
        results = backward.function(rows, *saved, *uniforms, *cotangents, *self.sizes)
        return results, backward.gradients

    def _replay_back(
        self,
        pattern: Pattern,
        backward: Backward,
        uniforms: Sequence[torch.Tensor],
        cotangents: Sequence[torch.Tensor],
    ) -> Sequence[torch.Tensor] | None:
        """What the backward half of all rows gives, as a CUDA graph; None where there is none."""
        assert isinstance(self.form, TrainingForm)
        count = len(self.saved)
        saved = [self._read(k) for k in range(count)]
        tensors = [*saved, *uniforms, *cotangents]
        function = _Unpacking(backward, self.layout, count)
        graphs = self.form.graphs_of(function, pattern, self.layout, count)
        fixed = range(count, count + len(uniforms))
        graph = graphs.find(self.rows, tensors, self.sizes, fixed)
        if graph is None:
            return None
        # Factors of weight gradients may have to wait for others; all else is used at once.
        assert self.ahead is not None
        found = graph.run(tensors, self.ahead.fetch)
        return [values.clone() if waits(values) else values for values in found]

    def read_saved(self, position: int) -> torch.Tensor:
        """A saved value, unless it has been changed since."""
        if self.layout is None:
            return self._read(position)
        self._read(self.layout.holder(position))
        return self.layout.read(self.saved, position)

    def _read(self, number: int) -> torch.Tensor:
        values = self.saved[number]
        if self.versions:
            check_version(values, self.versions[number])
        return values

    def _read_rows(self, position: int, index: Integers | None) -> torch.Tensor:
        """The rows of a saved value."""
        values = self.read_saved(position)
        if index is None:
            return values
        assert self.form is not None
        where = torch.from_numpy(index).to(values.device, non_blocking=True)
        return self.form.saved[position].select(values, self.rows, where)


@dataclass(frozen=True, slots=True)
class _Unpacking:
    """A backward half that takes saved values as they lie, all of them."""

    backward: Backward
    layout: Layout | None
    count: int

    def __call__(self, rows: int, *arguments: Any) -> tuple[torch.Tensor, ...]:
        """What the half gives."""
        tensors, positions = arguments[: self.count], self.backward.saved
        if self.layout is None:
            saved = [tensors[k] for k in positions]
        else:
            saved = self.layout.read_all(tensors, positions)
        return self.backward.function(rows, *saved, *arguments[self.count :])


def waits(values: torch.Tensor) -> bool:
    """Whether rows are so few that their contraction may have to wait for others."""
    return not values.dim() or len(values) < WINDOW


def second_backward() -> RuntimeError:
    """The error of torch about values that are gone."""
    return RuntimeError(
        "Trying to backward through the graph a second time (or directly access saved "
        "tensors after they have already been freed). Specify retain_graph=True if you "
        "need to backward through the graph a second time."
    )
