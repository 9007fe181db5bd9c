"""A template: memory and launches for plans of one outline, and their CUDA graph.

Its arenas have one chunk each, with room for all that the plans it serves put there. A run that is
poured into it works with its memory until it has gone backward; another that comes meanwhile runs
the plain way.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from penstock.ir.program import Captured, TorchCall
from penstock.plan.outline import Outline
from penstock.plan.schedule import Integers, Kind, Launch
from penstock.run.arenas import Arena
from penstock.run.capturing import capture
from penstock.run.fused.binding import FusedLaunch, bind_launch
from penstock.run.graphs import place_key
from penstock.run.inputs import input_values
from penstock.run.templates.layout import SPARE, Layout
from penstock.run.uploads import unchanging

if TYPE_CHECKING:
    from penstock.plan.call_inputs import Adopted
    from penstock.run.engine import Columns, Run


class Unfit(Exception):
    """Launches of a program cannot be stages of a template."""


class Replayable(Protocol):
    """Work that was captured."""

    def replay(self) -> None:
        """Do it again."""


class Repeated:
    """Work on a device without graphs: it is simply done again."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


def captured(work: Callable[[], None], device: torch.device) -> Replayable:
    """Work to be done again and again, done once so that all that it needs is there."""
    work()
    if device.type != "cuda":
        return Repeated(work)
    return capture(work, device)


@dataclass(slots=True, eq=False)
class Poured:
    """A plan in a template."""

    #: None once nothing of it is wanted any more.
    template: Template | None
    #: The launches of the plan, the instances of their rows, and their stages.
    launches: Sequence[Launch]
    instances: Sequence[Integers]
    stages: Sequence[int]


@dataclass(eq=False)
class Template:
    """Stages with their memory."""

    run: Run
    stages: Outline
    kinds: tuple[Kind, ...]
    #: The slots that there is room for in each arena.
    ends: tuple[int, ...]
    device: torch.device
    #: What each launch has saved, made by the graph.
    saved: list[Sequence[torch.Tensor]] = field(default_factory=list)
    graph: Replayable | None = None
    #: The way back, made and looked up by `penstock.autodiff`.
    way: Any = None
    #: The run that works with it now.
    holder: weakref.ref[Run] | None = None

    def __post_init__(self) -> None:
        self.layout = Layout(self.stages, self.ends, self.device)
        #: Stands for all runs that are poured in.
        self.own = own = copy.copy(self.run)
        self.key = place_key(own)
        own.arenas = [self._arena(number) for number in range(len(self.kinds))]
        own.mirrors, own.uniforms = {}, {}
        own.recorder = own.machine = own.keeping = None
        own.captures = [tensor.detach() for tensor in own.captures]
        del own.planner  # nothing is planned, and no arena is added
        for number, uniform in own.uniform_nodes.items():
            if not isinstance(uniform.node.operation, TorchCall):
                own.uniform(number)  # others are computed anew at every replay
        self._given = dict(own.uniforms)
        self.launches = [self._bind(launch) for launch in self.layout.launches]
        del self.run

    def _arena(self, number: int) -> Arena:
        arena = Arena(self.kinds[number], number)
        shape = (self.ends[number] + SPARE, *arena.kind.shape)
        arena.install(0, torch.zeros(shape, dtype=arena.dtype, device=arena.device))
        return arena

    def _bind(self, launch: Launch) -> FusedLaunch:
        block = self.own.blocks[launch.block]
        half = self.own.half_of(launch.block)
        bound = None
        if half is not None:
            function, name, returned = half
            layout: Any = self.layout
            bound = bind_launch(self.own, launch, block, function, name, layout, returned)
        if bound is None:
            raise Unfit(f"{block.name} is not launched whole")
        return bound

    def is_stale(self, run: Run) -> bool:
        """Whether what it reads is no longer where it was."""
        return self.key != place_key(run)

    @property
    def is_held(self) -> bool:
        """Whether a run works with it."""
        return self.holder is not None and self.holder() is not None

    def pour(self, run: Run, plan: Poured, columns: Columns, adopted: Adopted) -> None:
        """Run a plan, whose run holds the template from now on."""
        self.holder = weakref.ref(run)
        self.layout.pour(plan.stages, plan.launches)
        self._take_inputs(run, columns, adopted)
        if self.graph is None:
            self.graph = captured(self._run, self.device)
            self._take_inputs(run, columns, adopted)  # slots of inputs may be used again
        self.graph.replay()
        run.arenas, run.uniforms = list(self.own.arenas), dict(self.own.uniforms)
        for number, uniform in run.uniform_nodes.items():
            if isinstance(uniform.node.operation, Captured):
                run.uniforms[number] = run.captures[uniform.node.operation.index]

    def _take_inputs(self, run: Run, columns: Columns, adopted: Adopted) -> None:
        for span, values in input_values(run, columns, adopted):
            places = [self.own.arenas[span.arena].chunks[0]]
            places += (held for at, held in self.own.mirrors.items() if at.arena == span.arena)
            still = unchanging(values)
            for place in places:
                place[span.start : span.start + span.count].copy_(still, non_blocking=True)

    def _run(self) -> None:
        self.own.uniforms = dict(self._given)
        self.saved = [launch.run_anyhow(self.own) for launch in self.launches]

    def let_go(self) -> None:
        """The run needs it no more."""
        self.holder = None
