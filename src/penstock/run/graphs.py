"""Plans that are run again and again on a CUDA device, as CUDA graphs.

Once one plan has run many times in a row, its launches are captured and from then on replayed,
which costs the host next to nothing. A captured plan has memory of its own: what goes in is copied
there, what comes out is copied away. It serves one run at a time, until that has gone backward;
another that comes meanwhile runs the plain way. Each purpose (inference, training) of a program has
one captured plan at most, so memory is bounded.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import torch

from penstock.ir.program import Captured, TorchCall
from penstock.run.capturing import capture
from penstock.run.fused.setting import Fusion
from penstock.run.inputs import install_inputs
from penstock.run.memory.lasting import note_lasting
from penstock.run.prepared import PreparedLaunch
from penstock.run.uploads import unchanging

if TYPE_CHECKING:
    from penstock.run.arenas import Arena
    from penstock.run.engine import Columns, Run
    from penstock.run.kept_plans import KeptPlan

log = logging.getLogger("penstock")

#: How often in a row a plan is run before it is captured.
STREAK = 6

_capturing = threading.Lock()


class CapturedPlan:
    """A plan as a CUDA graph, with the memory that it works in."""

    def __init__(self, run: Run, plan: KeptPlan, columns: Columns) -> None:
        install_inputs(run, columns, plan.outcome.adopted)
        for arena in run.arenas:
            arena.chunks = [chunk.clone() for chunk in arena.chunks]
        #: Written anew for each run, which is no change in place to those who look for one.
        self.inputs = [chunk.data for chunk in _chunks(run.arenas)]
        self.device = _device_of(plan)
        for mirror in plan.mirrors:
            run.mirror(mirror)
        self.mirrors = {mirror: values.data for mirror, values in run.mirrors.items()}
        self.key = place_key(run)
        for number, uniform in run.uniform_nodes.items():
            if not isinstance(uniform.node.operation, TorchCall):
                run.uniform(number)  # others are computed anew at every replay
        self.graph = capture(lambda: _run_all(run, plan), self.device)
        self.arenas, self.uniforms, self.traces = run.arenas, run.uniforms, run.traces()
        #: The run that works with it now.
        self.holder: weakref.ref[Run] | None = None
        #: Ways back through it that are captured too, made and looked up by `penstock.autodiff`.
        self.ways: dict[int, Any] = {}

    def is_free_for(self, run: Run) -> bool:
        """Whether nobody else works with it, and all that it reads is where it was."""
        return not self.is_held and self.key == place_key(run)

    @property
    def is_held(self) -> bool:
        """Whether somebody works with it."""
        return self.holder is not None and self.holder() is not None

    def replay(self, run: Run, plan: KeptPlan, columns: Columns) -> None:
        """Run it on the data of a run, which holds it from now on."""
        self.holder, run.captured = weakref.ref(run), self
        install_inputs(run, columns, plan.outcome.adopted)
        for known, given in zip(self.inputs, _chunks(run.arenas), strict=True):
            known.copy_(given)
        for mirror, known in self.mirrors.items():
            given = run.arenas[mirror.arena].chunks[mirror.chunk]
            known.copy_(unchanging(given), non_blocking=True)
        self.graph.replay()
        run.arenas, run.uniforms = list(self.arenas), dict(self.uniforms)
        for number, uniform in run.uniform_nodes.items():
            if isinstance(uniform.node.operation, Captured):
                run.uniforms[number] = run.captures[uniform.node.operation.index]
        run.take_traces(self.traces)

    def is_held_by(self, run: object) -> bool:
        """Whether its values are those of a run."""
        return self.holder is not None and self.holder() is run

    def let_go(self) -> None:
        """The run needs it no more."""
        self.holder = None


class Graphs:
    """The captured plans of a program, and how near others are to it."""

    def __init__(self) -> None:
        self._streaks: dict[Hashable, tuple[weakref.ref[KeptPlan], int]] = {}
        self._captured: dict[Hashable, tuple[weakref.ref[KeptPlan], CapturedPlan | None]] = {}
        note_lasting(self)

    def give_back(self) -> bool:
        """Let go of the graphs that nobody works with; they are captured anew, once their plans
        have run again as often.
        """
        free = [k for k, (_, found) in self._captured.items() if found and not found.is_held]
        for purpose in free:
            del self._captured[purpose]
            self._streaks.pop(purpose, None)
        return bool(free)

    def run(self, run: Run, plan: KeptPlan, columns: Columns) -> bool:
        """Run a plan as a graph; False where the plain way must be taken."""
        is_watched = run.recorder is not None and run.recorder.profiles
        if is_watched or Fusion.mode == "never" or not _has_cuda(plan):
            return False
        with _capturing, torch.inference_mode(False), torch.no_grad():
            captured = self._find(run, plan, columns)
            if captured is None or not captured.is_free_for(run):
                return False
            captured.replay(run, plan, columns)
            return True

    def _find(self, run: Run, plan: KeptPlan, columns: Columns) -> CapturedPlan | None:
        purpose = run.purpose
        found = self._captured.get(purpose)
        if found is not None and found[0]() is plan:
            return found[1]
        if found is not None and found[0]() is None:
            del self._captured[purpose]  # the plan was let go
        before, count = self._streaks.get(purpose, (None, 0))
        count = count + 1 if before is not None and before() is plan else 1
        self._streaks[purpose] = weakref.ref(plan), count
        if count <= STREAK:
            return None
        found = None
        self._captured.pop(purpose, None)  # first, as there may not be memory for both
        captured = self._capture(run, plan, columns)
        self._captured[purpose] = weakref.ref(plan), captured
        return captured

    def _capture(self, run: Run, plan: KeptPlan, columns: Columns) -> CapturedPlan | None:
        try:
            return CapturedPlan(run, plan, columns)
        except Exception as problem:  # torch tells in many ways that a call cannot be captured
            log.info("a plan runs without a CUDA graph: %s", problem)
            return None
        finally:
            run.arenas, run.uniforms, run.mirrors = [], {}, {}
            run.take_traces(run.no_traces())


def _run_all(run: Run, plan: KeptPlan) -> None:
    for window in plan.windows:
        run._carry_out_again(window)


def _chunks(arenas: list[Arena]) -> list[torch.Tensor]:
    return [chunk for arena in arenas for chunk in arena.chunks]


def _has_cuda(plan: KeptPlan) -> bool:
    return any(extent.kind.device.startswith("cuda") for extent in plan.outcome.extents)


def _device_of(plan: KeptPlan) -> torch.device:
    """The device on which all values are made; inputs may be elsewhere."""
    kinds = [extent.kind for extent in plan.outcome.extents]
    grown = {kinds[chunk.arena].device for window in plan.windows for chunk in window.growth}
    steps = (step for window in plan.windows for step in window.steps)
    launches = (step.launch for step in steps if isinstance(step, PreparedLaunch))
    grown |= {kinds[target.arena].device for launch in launches for target in launch.targets}
    if len(grown) != 1 or not next(iter(grown)).startswith("cuda"):
        raise RuntimeError(f"it makes values on {', '.join(sorted(grown))}")
    return torch.device(grown.pop())


def place_key(run: Run) -> Hashable:
    """What a captured plan takes as it was: where tensors are, and how products are made."""
    places = tuple(
        (tensor.data_ptr(), tensor.stride(), tensor.is_conj(), tensor.is_neg())
        for tensor in run.captures
    )
    return (
        places,
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
    )
