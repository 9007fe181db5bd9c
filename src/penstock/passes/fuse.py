"""Forms blocks: torch calls that can run as one launch become one node, host operations one
computation.

Steps of one arm are put into stages, such that a path that leaves a group and comes back crosses a
stage; what is in one stage and hangs together (by an edge or a shared input) is one group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.ir.graph import Graph, Home, Key, Node, Wire
from penstock.passes.block_kinds import kind_of, settle_kinds
from penstock.passes.blocks import BlockMaker
from penstock.passes.draft import Draft, DraftNode, TorchStep, finish
from penstock.passes.lowering import Lowering
from penstock.passes.steps import Needs, Step, find_needs, sort_steps


@dataclass(slots=True)
class Groups:
    """A union-find over steps."""

    parents: dict[Step, Step] = field(default_factory=dict)

    def find(self, step: Step) -> Step:
        """The step that stands for the group."""
        while (parent := self.parents.get(step, step)) is not step:
            step = parent
        return step

    def join(self, first: Step, second: Step) -> None:
        """Make one group of two."""
        first, second = self.find(first), self.find(second)
        if first is not second:
            self.parents[second] = first


def form_blocks(lowering: Lowering) -> Graph:
    """The graph of the drafts, torch calls and host operations fused."""
    reads = _count_reads(lowering.drafts)
    maker = BlockMaker(lowering.flow, reads)
    nodes = {draft.index: _fuse_draft(draft, reads, maker) for draft in lowering.drafts}
    contexts = finish(lowering.drafts, nodes)
    has_random = any(isinstance(node.operation, Key) for made in nodes.values() for node in made)
    wires = lowering.wires
    return Graph(contexts, tuple(wires.uniforms), tuple(wires.inputs), has_random)


def _count_reads(drafts: Sequence[Draft]) -> Counter[Wire]:
    """How often each wire is read, by nodes or by what leaves a context."""
    reads: Counter[Wire] = Counter()
    for draft in drafts:
        reads.update(draft.outputs)
        reads.update(draft.exits)
        for node in draft.nodes:
            reads.update(node.inputs)
    return reads


def _fuse_draft(draft: Draft, reads: Counter[Wire], maker: BlockMaker) -> list[Node]:
    steps = [Step(node, kind_of(node.operation)) for node in draft.nodes]
    needs = find_needs(steps, draft.arms)
    steps = sort_steps(steps, needs)
    settle_kinds(steps, reads, is_loop=draft.kind == "loop")
    _set_stages(steps, needs)
    _sink(steps, reads)
    groups = _group(steps)
    members: dict[Step, list[DraftNode]] = {}
    for step in steps:
        members.setdefault(groups.find(step), []).append(step.node)
    merged = [Step(maker.merge(draft.name, step.kind, group)) for step, group in members.items()]
    ordered = sort_steps(merged, find_needs(merged, draft.arms))
    return [_node_of(draft, step.node) for step in ordered]


def _set_stages(steps: Sequence[Step], needs: Needs) -> None:
    for step in steps:
        stages = [other.stage + (not step.can_join(other)) for other in needs[step]]
        step.stage = max(stages, default=0)


def _sink(steps: Sequence[Step], reads: Counter[Wire]) -> None:
    """Move torch calls to the stage of their readers, where these are all of the same kind and arm.

    What only a later block reads becomes part of it, instead of a launch of its own.
    """
    readers: dict[Wire, list[Step]] = {}
    for step in steps:
        for wire in step.node.inputs:
            readers.setdefault(wire, []).append(step)
    for step in reversed(steps):
        if step.kind in (None, "host"):
            continue
        after = [reader for wire in step.node.outputs for reader in readers.get(wire, ())]
        is_private = sum(reads[wire] for wire in step.node.outputs) == len(after)
        if after and is_private and all(map(step.can_join, after)):
            step.stage = max(step.stage, min(reader.stage for reader in after))


def _group(steps: Sequence[Step]) -> Groups:
    """Steps of one stage that hang together."""
    groups = Groups()
    producer = {wire: step for step in steps for wire in step.node.outputs}
    readers: dict[object, Step] = {}
    for step in steps:
        if step.kind is None:
            continue
        for wire in step.node.inputs:
            if wire.home is Home.UNIFORM:
                continue
            source = producer.get(wire)
            if source and source.can_join(step) and source.stage == step.stage:
                groups.join(source, step)
            key = (wire, step.where, step.stage)
            groups.join(readers.setdefault(key, step), step)
    return groups


def _node_of(draft: Draft, node: DraftNode) -> Node:
    assert not isinstance(node.operation, TorchStep), "torch calls are in blocks"
    return Node(node.operation, node.inputs, node.outputs, draft.index, node.arm, node.source)
