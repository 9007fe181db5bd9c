"""A call of a program that leaves a tape: which values carry gradients, and what outlives the call.

When the call is over, values live on in pages only. A plan that was captured hands its tape to
later calls, which go backward anew.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from penstock.autodiff.leading_slots import find_leading
from penstock.autodiff.page import Page
from penstock.autodiff.strips import Strip
from penstock.autodiff.tape import Entry, Tape, Taping
from penstock.autodiff.versions import version_of
from penstock.ir.graph import Wire
from penstock.plan.schedule import Span
from penstock.run.engine import Run
from penstock.run.kept_plans import KeptPlan
from penstock.run.strips.batch import Batch


class TapedRun(Taping, Run):
    """A run of a program that leaves a tape."""

    #: The wires through which gradients flow.
    wires: frozenset[Wire]

    def __init__(self, *args: Any, wires: frozenset[Wire], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tape, self.wires = Tape(), wires
        self.versions: dict[int, int] = {}
        #: The operands and results of blocks that carry gradients, as far as they were asked for.
        self.known_flows: dict[int, tuple[Sequence[int], Sequence[int]]] = {}

    #: What says in which pieces launches have run; None where all were whole.
    division: Hashable = None

    @property
    def purpose(self) -> Hashable:
        """What a captured plan may serve for."""
        return self.wires, self.saves_rows

    def traces(self) -> list[Entry]:
        """The tape, which later runs write anew."""
        for entry in self.tape.entries:
            if isinstance(entry, Page):
                entry.is_lasting = True
        return self.tape.entries

    def no_traces(self) -> list[Entry]:
        """An empty tape."""
        return []

    def take_traces(self, traces: list[Entry]) -> None:
        """Have the tape of another run, of which nothing has gone backward."""
        self.tape.entries = traces
        for entry in traces:
            if isinstance(entry, Page):
                entry.consumed = None

    def note_strip(self, batch: Batch, begin: int, end: int) -> None:
        """Native code has run these launches: they go on the tape together."""
        self.tape.add(Strip(self, batch, begin, end))

    def finish(self) -> None:
        """Let go of what backward does not need: values live on in pages only, and of the planner
        what it leaves behind.
        """
        self.arenas, self.mirrors = [], {}
        self.machine = None
        self.planner = self.kept or KeptPlan(self.outcome)
        self.versions = {number: version_of(value) for number, value in self.uniforms.items()}

    def unasked(self) -> Iterable[Span]:
        """Slots of inputs that carry no gradients, though others of their arenas may."""
        entries = zip(self.executable.graph.inputs, self.outcome.adopted, strict=True)
        return (
            span for entry, spans in entries if entry.slot not in self.wires for span in spans or ()
        )

    def leading_slots(self) -> Mapping[int, int]:
        """For some arenas how many of their first slots have no part in a backward pass."""
        if self.executable.placement is not None:  # other devices send gradients too
            return {}
        return find_leading(self.extents(), self.unasked(), self.tape, self.outcome)

    def flows(self, number: int) -> tuple[Sequence[int], Sequence[int]]:
        """The operands and results of a block that carry gradients."""
        if number not in self.known_flows:
            node = self.blocks[number].node
            operands = tuple(
                position
                for position, wire in enumerate(node.inputs)
                if wire in self.wires and wire.home != "host"
            )
            results = tuple(k for k, wire in enumerate(node.outputs) if wire in self.wires)
            self.known_flows[number] = operands, results
        return self.known_flows[number]
