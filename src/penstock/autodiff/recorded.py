"""Gradients of recorded steps: one tape for a scope, and an autograd node for each time that
outputs are asked for.

A node goes back through the tape as it was when its outputs were taken: what was run later cannot
have made them, and may use their slots for other values. Nodes share the pages before: one backward
pass of torch may come through several of them, so pages of a scope with several nodes are kept
until the last node is let go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from penstock.autodiff.backward import go_backward
from penstock.autodiff.bounded.runs import Bounded
from penstock.autodiff.ends import FindUniform, Located
from penstock.autodiff.gradients import add_gradients
from penstock.autodiff.reverse import Reversal
from penstock.autodiff.tape import Tape, Taping
from penstock.autodiff.versions import check_version, version_of, versions_of
from penstock.autodiff.way_back import WayBack
from penstock.plan.recorded import StepPlanner
from penstock.plan.schedule import Integers, Span
from penstock.run.blocks import RunnableBlock
from penstock.run.faults import Numbers
from penstock.run.memory.policy import current_policy
from penstock.run.recorded import FetchUniform, RecordedRun
from penstock.run.recording import CallRecorder
from penstock.run.step_blocks import StepBlock


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """Values that came from outside, in one flush and stored alike."""

    span: Span
    #: Slots of each value.
    length: int
    #: All of them, joined: the chunk of the arena, which nobody writes to.
    values: torch.Tensor
    #: Those that ask for gradients, by their place.
    asking: dict[int, torch.Tensor]
    #: Their versions when they were loaded.
    versions: Sequence[int]

    def slots(self, place: int) -> Integers:
        """The slots of one value."""
        start = self.span.start + place * self.length
        return np.arange(start, start + self.length)


class TapedRecordedRun(Taping, RecordedRun):
    """A scope of recorded steps that leaves a tape."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tape = Tape()
        self.versions: dict[int, int] = {}
        self.loaded: list[Loaded] = []
        #: How many autograd nodes go back through the tape.
        self.nodes = 0

    def flows(self, number: int) -> tuple[Sequence[int], Sequence[int]]:
        """The operands and results of a block that carry gradients."""
        block = self.blocks[number]
        assert isinstance(block, StepBlock)
        return block.flows_in, block.flows_out

    def checkpoint(self) -> Any:
        """What `go_back_to` needs to undo the flushes after it."""
        return super().checkpoint(), len(self.tape.entries), len(self.loaded)

    def go_back_to(self, checkpoint: Any) -> None:
        """Forget a flush that failed; values of earlier flushes stay."""
        inner, entries, loaded = checkpoint
        super().go_back_to(inner)
        del self.tape.entries[entries:]
        del self.loaded[loaded:]

    def outputs(self, values: Integers, is_flowing: Sequence[bool]) -> list[torch.Tensor]:
        """Values as ordinary tensors, each in memory of its own; those that flow come out of one
        autograd node.
        """
        tensors = self._asking_tensors() if torch.is_grad_enabled() and any(is_flowing) else []
        if not tensors:
            return super().outputs(values, is_flowing)
        self.nodes += 1
        connected = np.array(is_flowing, np.bool_)
        ends = RecordedEnds(self, tensors, [self.slots(value) for value in values[connected]])
        flowing = iter(OutputsNode.apply(ends, values[connected], *tensors))  # type: ignore[no-untyped-call]
        plain = iter(super().outputs(values[~connected], ()))
        return [next(flowing if each else plain) for each in is_flowing]

    def _asking_tensors(self) -> list[torch.Tensor]:
        """The tensors from outside that ask for gradients, each once."""
        inputs = (tensor for loaded in self.loaded for tensor in loaded.asking.values())
        uniforms = (tensor for tensor in self.uniforms.values() if tensor.requires_grad)
        return list({id(tensor): tensor for tensor in (*inputs, *uniforms)}.values())

    def _find_uniform(self, number: int) -> None:
        super()._find_uniform(number)
        self.versions[number] = version_of(self.uniforms[number])

    def _load(self, span: Span, length: int | None, tensors: Sequence[torch.Tensor]) -> None:
        super()._load(span, length, tensors)
        values = self.arenas[span.arena].chunks[-1]
        asking = {place: tensor for place, tensor in enumerate(tensors) if tensor.requires_grad}
        versions = versions_of(list(asking.values()))
        self.loaded.append(Loaded(span, 1 if length is None else length, values, asking, versions))


class BoundedRecordedRun(Bounded, TapedRecordedRun):
    """A scope of recorded steps that leaves a tape and follows a memory policy."""

    def go_back_to(self, checkpoint: Any) -> None:
        """Forget a flush that failed."""
        entries = self.tape.entries[checkpoint[1] :]
        super().go_back_to(checkpoint)
        self.strategy.cut(self, entries)

    def finish(self, values: Integers | None = None) -> None:
        """No more flushes come."""
        self.end()
        super().finish(values)


class RecordedEnds:
    """Both ends of a scope's tape, for some outputs."""

    #: Every scope finds its own way back.
    keeps_ways = False

    def __init__(
        self,
        run: TapedRecordedRun,
        tensors: list[torch.Tensor],
        places: list[tuple[int, Integers]],
    ) -> None:
        self.run = run
        self.tensors = tensors
        #: The arena and the slots of each output, as long as the tape is no longer than this.
        self.places = places
        self.end = len(run.tape.entries)
        self.loaded = tuple(run.loaded)

    @property
    def is_one_of_several(self) -> bool:
        """Whether other nodes may go through the same rows."""
        return self.run.nodes > 1

    @property
    def entries(self) -> list[Any]:
        """The tape up to the time at which the outputs were taken."""
        return self.run.tape.entries[: self.end]

    def cotangents(self, grads: Sequence[torch.Tensor | None]) -> list[Located]:
        """The cotangents of outputs, where there are any."""
        pairs = zip(self.places, grads, strict=True)
        return [(arena, slots, grad) for (arena, slots), grad in pairs if grad is not None]

    def known_way(self, grads: Sequence[torch.Tensor | None]) -> WayBack | None:
        """None: no way is kept."""
        return None

    def keep_way(self, grads: Sequence[torch.Tensor | None], way: WayBack | None) -> None:
        """Nothing: no way is kept."""

    def gradients(self, reversal: Reversal) -> list[torch.Tensor | None]:
        """The gradient of each tensor; one that came in several places has the sum."""
        found: dict[int, torch.Tensor] = {}

        def add(tensor: torch.Tensor, gradient: torch.Tensor) -> None:
            found[id(tensor)] = add_gradients(found.get(id(tensor)), gradient)

        for loaded in self.loaded:
            for place, tensor in loaded.asking.items():
                gradient = reversal.gradient_of(loaded.span.arena, loaded.slots(place))
                if gradient is not None:
                    add(tensor, gradient.reshape(tensor.shape).clone())
        for number, gradient in reversal.uniform_gradients.items():
            add(self.run.uniform(number), gradient)
        return [found.get(id(tensor)) for tensor in self.tensors]

    def uniforms(self, tensors: Sequence[torch.Tensor]) -> FindUniform:
        """How to find uniform values, given others in the place of `tensors`."""
        given = self._given(tensors)

        def find(number: int) -> torch.Tensor:
            values = self.run.uniform(number)
            check_version(values, self.run.versions[number])
            return given(values)

        return find

    def inputs(self, tensors: Sequence[torch.Tensor], uniform: FindUniform) -> Iterator[Located]:
        """The values from outside, given others in the place of `tensors`."""
        given = self._given(tensors)
        for loaded in self.loaded:
            start, count = loaded.span.start, loaded.span.count
            yield loaded.span.arena, np.arange(start, start + count), _joined(loaded, given)

    def _given(self, tensors: Sequence[torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        others = {id(own): other for own, other in zip(self.tensors, tensors, strict=True)}
        return lambda tensor: others.get(id(tensor), tensor)


def _joined(loaded: Loaded, given: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """All values, those that ask for gradients connected to what is given for them."""
    if not loaded.asking:
        return loaded.values
    parts = list(torch.split(loaded.values, loaded.length))
    for (place, tensor), version in zip(loaded.asking.items(), loaded.versions, strict=True):
        check_version(tensor, version)
        parts[place] = given(tensor).reshape(parts[place].shape)
    return torch.cat(parts)


class OutputsNode(torch.autograd.Function):
    """The autograd node of some outputs of a scope."""

    @staticmethod
    def forward(ctx: Any, ends: RecordedEnds, values: Integers, *tensors: torch.Tensor) -> Any:
        """Take the outputs out of the arenas."""
        ctx.ends = ends
        ctx.set_materialize_grads(False)
        return tuple(RecordedRun.outputs(ends.run, values, ()))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        """Reverse the tape, or replay it."""
        return None, None, *go_backward(ctx.ends, grads)


def start_run(
    blocks: Sequence[RunnableBlock],
    planner: StepPlanner,
    fetch_uniform: FetchUniform,
    numbers: Numbers = None,
    recorder: CallRecorder | None = None,
    *,
    is_taped: bool,
) -> RecordedRun:
    """The run of a scope, with a tape or without."""
    call = blocks, planner, fetch_uniform, numbers, recorder
    policy = current_policy()
    if not is_taped:
        return RecordedRun(*call)
    if policy is None or policy.kind == "keep":
        return TapedRecordedRun(*call)
    return BoundedRecordedRun(*call, policy=policy)
