"""Watches calls from inside: the machine, what it fires and delivers, which rows it makes and ends.

A test calls a `ps.function` as a user would, and then looks at `watch.machine`, `watch.events` and
`watch.instructions`, all of the last call.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from penstock.ir.graph import Context, Graph, Node
from penstock.plan.machine import Machine
from penstock.plan.schedule import Instruction, Launch
from penstock.run import engine


class Event(NamedTuple):
    """One thing that happened: "fire", "create", "end" or "deliver"."""

    what: str
    #: The kind of node that fired, or the name of the context.
    name: str
    rows: list[int]
    #: The linked node, the context's index, or the group.
    detail: Any


class Watch:
    """What the calls of one test did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run: engine.Run | None = None
        self.events: list[Event] = []
        self._patch = monkeypatch
        self._around(engine.Run, "carry_out", self._before_run)
        self._around(Machine, "fire", self._before_fire)
        self._around(Machine, "deliver", self._before_deliver)
        self._around(Machine, "_end", self._before_end)
        self._after_create()

    @property
    def machine(self) -> Machine:
        """The machine of the last call."""
        assert self.run is not None
        return self.run.machine

    @property
    def graph(self) -> Graph:
        """The graph of the last call."""
        return self.machine.linked.graph

    @property
    def instructions(self) -> list[Instruction]:
        """What the last call told the runner."""
        assert self.run is not None
        return self.run.schedule.instructions

    def launches(self, block: str = "") -> list[Launch]:
        """The launches of blocks whose name contains `block`."""
        assert self.run is not None
        names = self.run.schedule.blocks
        return [launch for launch in self.run.schedule.launches if block in names[launch.block]]

    def nodes(self, kind: type) -> list[Node]:
        """The nodes with an operation of that type."""
        found = [node for context in self.graph.contexts for node in context.nodes]
        return [node for node in found if isinstance(node.operation, kind)]

    def context(self, kind: str) -> Context:
        """The first context of a kind, the entry left out."""
        return next(c for c in self.graph.contexts[1:] if c.kind == kind)

    def fired(self, kind: str) -> list[Event]:
        """The firings of nodes of one kind."""
        return [event for event in self.events if (event.what, event.name) == ("fire", kind)]

    def when(self, what: str, name: str) -> list[int]:
        """The positions of events of that sort."""
        return [k for k, e in enumerate(self.events) if (e.what, e.name) == (what, name)]

    def block_firings(self, name: str) -> list[int]:
        """The positions of firings of blocks whose name contains `name`."""
        return [
            k
            for k, event in enumerate(self.events)
            if event.what == "fire"
            and event.name == "block"
            and name in event.detail.node.operation.name
        ]

    # ---- patches -----------------------------------------------------------------------------

    def _around(self, owner: type, name: str, before: Any) -> None:
        original = getattr(owner, name)

        def patched(target: Any, *args: Any, **kwargs: Any) -> Any:
            before(target, *args)
            return original(target, *args, **kwargs)

        self._patch.setattr(owner, name, patched)

    def _before_run(self, run: engine.Run, *_: Any) -> None:
        run.keeps_schedule = True
        self.run, self.events = run, []

    def _before_fire(self, machine: Machine, node: Any, rows: Any, *_: Any) -> None:
        self.events.append(Event("fire", node.kind, rows.tolist(), node))

    def _before_deliver(self, machine: Machine, group: Any, rows: Any, *_: Any) -> None:
        if len(rows):
            name = machine.linked.contexts[group.context].context.name
            self.events.append(Event("deliver", name, rows.tolist(), group))

    def _before_end(self, machine: Machine, context: int, rows: Any) -> None:
        name = machine.linked.contexts[context].context.name
        self.events.append(Event("end", name, rows.tolist(), context))

    def _after_create(self) -> None:
        original = Machine.create

        def create(machine: Machine, context: int, *args: Any, **kwargs: Any) -> Any:
            rows = original(machine, context, *args, **kwargs)
            home = machine.rows[context]
            facts = {
                name: np.array(getattr(home, name)[rows])
                for name in ("parent", "instance", "depth", "count", "site", "key")
            }
            name = machine.linked.contexts[context].context.name
            self.events.append(Event("create", name, rows.tolist(), facts))
            return rows

        self._patch.setattr(Machine, "create", create)


def slots(operand: Any) -> list[int]:
    """The slots of a span or of picks."""
    if hasattr(operand, "slots"):
        return operand.slots.tolist()  # type: ignore[no-any-return]
    return list(range(operand.start, operand.start + operand.count))
