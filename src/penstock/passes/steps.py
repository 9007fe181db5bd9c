"""Nodes of a draft on their way into groups, and the order in which they can be told.

A step comes after what makes its inputs and after the Switch that opens its arm; a Switch comes
after everything that its arms read from outside. So a graph can be printed with arms under their
Switch, and what leaves an arm comes after all that decides whether the arm runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.ir.devices import Device
from penstock.ir.graph import Switch, Wire
from penstock.passes.draft import DraftNode, TorchStep

Needs = dict["Step", list["Step"]]


@dataclass(slots=True, eq=False)
class Step:
    """A node with what fusing finds out."""

    node: DraftNode
    #: Steps of one kind can share a group; None stands alone.
    kind: str | None = None
    #: A path that leaves a group and comes back crosses a stage.
    stage: int = 0

    def can_join(self, other: Step) -> bool:
        """Whether the two could be in one group, as far as kinds, arms and devices go."""
        return self.kind is not None and self.where == other.where

    @property
    def where(self) -> tuple[str | None, int, Device | None]:
        """What the steps of a group have in common."""
        operation = self.node.operation
        device = operation.node.device if isinstance(operation, TorchStep) else None
        return self.kind, self.node.arm, device


def find_needs(steps: Sequence[Step], arms: Sequence[int | None]) -> Needs:
    """The steps that come before each step."""
    producer = {wire: step for step in steps for wire in step.node.outputs}
    openers = {arm: step for step in steps for arm in _opened_arms(step)}
    needs: Needs = {step: _producers(step, producer) for step in steps}
    for step in steps:
        if step.node.arm in openers:
            needs[step].append(openers[step.node.arm])
        for other in _producers(step, producer):
            around = set(_outwards(other.node.arm, arms))
            for arm in _outwards(step.node.arm, arms):
                if arm in around:
                    break
                needs[openers[arm]].append(other)
    return needs


def _producers(step: Step, producer: Mapping[Wire, Step]) -> list[Step]:
    return [producer[wire] for wire in step.node.inputs if wire in producer]


def _opened_arms(step: Step) -> tuple[int, ...]:
    return step.node.operation.arms if isinstance(step.node.operation, Switch) else ()


def _outwards(arm: int | None, arms: Sequence[int | None]) -> Iterator[int]:
    """The arm and those around it, innermost first."""
    while arm is not None:
        yield arm
        arm = arms[arm]


def sort_steps(steps: Sequence[Step], needs: Needs) -> list[Step]:
    """The steps in an order that they can be told in; otherwise as they came."""
    ordered: dict[Step, None] = {}
    for start in steps:
        stack = [start]
        while stack:
            missing = [other for other in needs[stack[-1]] if other not in ordered]
            if missing:
                stack.extend(reversed(missing))
            else:
                ordered[stack.pop()] = None
    return list(ordered)
