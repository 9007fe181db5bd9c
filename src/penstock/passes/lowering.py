"""The state of one lowering, and the way down: every node goes to the rule for its operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.ir.graph import Wire
from penstock.ir.program import Body, Node, Source
from penstock.passes.draft import Arm, Draft
from penstock.passes.flow import Flow
from penstock.passes.slicing import Slices
from penstock.passes.wires import Wires

#: Adds what a program node becomes to an arm.
Rule: TypeAlias = "Callable[[Lowering, Node, Arm], None]"


@dataclass(slots=True)
class Lowering:
    """The drafts made so far, with what the rules need."""

    flow: Flow
    slices: Slices
    wires: Wires
    #: One rule for each kind of operation.
    rules: Mapping[type, Rule]
    drafts: list[Draft] = field(default_factory=list)
    #: The contexts of functions, by name.
    functions: dict[str, Draft] = field(default_factory=dict)

    def lower_body(self, body: Body, arm: Arm) -> None:
        """All nodes of a body that something needs."""
        for node in body.nodes:
            if self.slices.is_live(node):
                self.rules[type(node.operation)](self, node, arm)

    def new_function(self, name: str, source: Source | None) -> Draft:
        """The context of a function."""
        draft = Draft(len(self.drafts), "function", name, None, source)
        self.drafts.append(draft)
        self.functions[name] = draft
        return draft

    def new_inner(self, kind: str, node: Node, arm: Arm) -> Draft:
        """The context of a loop or for-each in an arm."""
        outer = arm.draft
        path = (*arm.path, *node.site)
        name = f"{outer.name}.{kind}"
        draft = Draft(len(self.drafts), kind, name, outer.index, node.source, path)
        self.drafts.append(draft)
        return draft

    def invariants(self, inner: Draft) -> tuple[Wire, ...]:
        """What the context and those inside it read from the contexts around it."""
        inside = {inner.index}
        for draft in self.drafts:
            if draft.parent in inside:
                inside.add(draft.index)
        read = (
            wire
            for index in sorted(inside)
            for node in self.drafts[index].nodes
            for wire in node.inputs
        )
        return tuple(dict.fromkeys(w for w in read if w.is_of_row and w.context not in inside))
