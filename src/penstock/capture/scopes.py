"""Bodies under construction: which one is being filled, and which values it may read.

A scope becomes one body. It may read its own values and those of the scopes around it, up to the
function; the values of another function, or of a body that is finished, are out of reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from penstock.capture.traced_tensor import TracedTensor
from penstock.ir.graph import BODY
from penstock.ir.program import Body, Node, Value


@dataclass(slots=True, eq=False)
class FunctionTrace:
    """One function while it is traced."""

    name: str
    #: Nodes for what the whole function reads by reference; they come first in its body.
    prologue: list[Node] = field(default_factory=list)
    #: The traced tensor of each capture that the function reads, by number.
    captured: dict[int, TracedTensor] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Scope:
    """One body while it is filled."""

    function: FunctionTrace
    parent: Scope | None = None
    inputs: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    #: How many random operations and nested scopes there are so far.
    sites: int = 0
    #: (site, number) of each branch around that was decided while tracing.
    decided: tuple[int, ...] = ()
    #: Python objects that the body made, which are its own to change.
    made: dict[int, object] = field(default_factory=dict)
    #: How many `try` statements with handlers are at work.
    tries: int = 0

    @property
    def root(self) -> Scope:
        """The outermost scope of the same function."""
        return self if self.parent is None else self.parent.root

    def sees(self, other: Scope) -> bool:
        """Whether values of `other` may be read here."""
        scope: Scope | None = self
        while scope is not None:
            if scope is other:
                return True
            scope = scope.parent
        return False

    def next_site(self) -> tuple[int, ...]:
        """The place of the next random operation or nested scope."""
        self.sites += 1
        return (*self.decided, self.sites - 1)

    @contextmanager
    def decided_branch(self, number: int) -> Iterator[None]:
        """Run a branch that Python decided on; it counts as one that the machine decides on."""
        site = self.next_site()
        outer = self.decided, self.sites
        self.decided, self.sites = (*site, number), 0
        try:
            yield
        finally:
            self.decided, self.sites = outer

    @contextmanager
    def decided_at(
        self, site: tuple[int, ...], iteration: int, *, is_body: bool = False
    ) -> Iterator[None]:
        """Run an iteration that Python decided on, or its test; it counts as the machine's."""
        outer = self.decided, self.sites
        self.decided = (*site, iteration, BODY) if is_body else (*site, iteration)
        self.sites = 0
        try:
            yield
        finally:
            self.decided, self.sites = outer

    def own(self, value: Any) -> Any:
        """Note an object that the body has made, and return it."""
        if self.parent is not None:
            self.made[id(value)] = value
        return value

    def owns(self, value: object) -> bool:
        """Whether the body has made an object."""
        return id(value) in self.made

    def body(self, outputs: Sequence[Value]) -> Body:
        """The finished body."""
        prologue = self.function.prologue if self.parent is None else []
        return Body(tuple(self.inputs), (*prologue, *self.nodes), tuple(outputs))
