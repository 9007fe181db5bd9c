"""Forms blocks: torch calls that can run as one launch become one node, host operations one computation.

Nodes of one arm are put into stages, such that a path that leaves a group and comes back crosses a stage; what is in
one stage and hangs together (by an edge or a shared input) is one group. Order of nodes follows the wires.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from penstock.ir.graph import Block, Compute, Graph, Home, HostStep, Node, Wire
from penstock.ir.program import Node as ProgramNode
from penstock.ir.program import Size, Source, TorchCall, Value
from penstock.passes.lower import Draft, Lowering, TorchStep, finish
from penstock.passes.rowwise import flat_symbol


@dataclass(slots=True, eq=False)
class Step:
    """A node of a draft with what fusing finds out."""

    operation: object
    inputs: tuple[Wire, ...]
    outputs: tuple[Wire, ...]
    arm: int
    source: Source | None
    #: Steps of one kind can share a group; None stands alone.
    kind: str | None
    stage: int = 0


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
    reads: Counter[Wire] = Counter()
    for draft in lowering.drafts:
        reads.update(draft.outputs)
        reads.update(draft.exits)
        for _, inputs, _, _, _ in draft.nodes:
            reads.update(inputs)
    names: dict[str, int] = {}
    nodes = {draft.index: _fuse_draft(lowering, draft, reads, names) for draft in lowering.drafts}
    return finish(lowering, nodes)


def _fuse_draft(
    lowering: Lowering, draft: Draft, reads: Counter[Wire], names: dict[str, int]) -> list[Node]:
    steps = _sort(_steps(draft))
    producer = {wire: step for step in steps for wire in step.outputs}
    for step in steps:
        step.stage = max((_stage_after(producer, wire, step) for wire in step.inputs), default=0)
    _sink(steps, reads)
    groups = _group(steps, producer)
    members: dict[Step, list[Step]] = {}
    for step in steps:
        members.setdefault(groups.find(step), []).append(step)
    merged = [_merge(lowering, draft, group, reads, names) for group in members.values()]
    return _order(merged)


def _sink(steps: list[Step], reads: Counter[Wire]) -> None:
    """Move torch calls to the stage of their readers, where these are all of the same kind and arm.

    What only a later block reads becomes part of it, instead of a launch of its own.
    """
    readers: dict[Wire, list[Step]] = {}
    for step in steps:
        for wire in step.inputs:
            readers.setdefault(wire, []).append(step)
    for step in reversed(steps):
        if step.kind in (None, "host"):
            continue
        after = [reader for wire in step.outputs for reader in readers.get(wire, ())]
        is_private = sum(reads[wire] for wire in step.outputs) == len(after)
        if is_private and all((r.kind, r.arm) == (step.kind, step.arm) for r in after) and after:
            step.stage = max(step.stage, min(reader.stage for reader in after))


def _steps(draft: Draft) -> list[Step]:
    return [
        Step(operation, inputs, outputs, arm, source, _kind(operation))
        for operation, inputs, outputs, arm, source in draft.nodes
    ]


def _kind(operation: object) -> str | None:
    match operation:
        case Compute():
            return "host"
        case TorchStep(node=node):
            symbol = flat_symbol(node)
            return f"flat {symbol}" if symbol else "data"
        case _:
            return None


def _stage_after(producer: dict[Wire, Step], wire: Wire, step: Step) -> int:
    source = producer.get(wire)
    if source is None:
        return 0
    is_together = step.kind is not None and source.kind == step.kind and source.arm == step.arm
    return source.stage if is_together else source.stage + 1


def _sort(steps: list[Step]) -> list[Step]:
    """Producers before consumers; otherwise the order they came in."""
    producer = {wire: step for step in steps for wire in step.outputs}
    ordered: dict[Step, None] = {}
    for start in steps:
        stack = [start]
        while stack:
            step = stack[-1]
            missing = [producer[w] for w in step.inputs if w in producer]
            missing = [other for other in missing if other not in ordered]
            if missing:
                stack.extend(missing)
            else:
                ordered[stack.pop()] = None
    return list(ordered)


def _group(steps: list[Step], producer: dict[Wire, Step]) -> Groups:
    groups = Groups()
    readers: dict[tuple[Wire, str, int, int], Step] = {}
    for step in steps:
        if step.kind is None:
            continue
        for wire in step.inputs:
            if wire.home is Home.UNIFORM:
                continue
            source = producer.get(wire)
            key = (wire, step.kind, step.arm, step.stage)
            if source and (source.kind, source.arm, source.stage) == key[1:]:
                groups.join(source, step)
            groups.join(readers.setdefault(key, step), step)
    return groups


def _merge(
    lowering: Lowering, draft: Draft, group: list[Step], reads: Counter[Wire], names: dict[str, int]) -> Node:
    first = group[0]
    if first.kind is None:
        return Node(
            first.operation,  # type: ignore[arg-type]
            first.inputs,
            first.outputs,
            draft.index,
            first.arm,
            first.source,
        )
    if first.kind == "host":
        return _merge_host(draft, group, reads)
    return _merge_torch(lowering, draft, group, reads, names)


def _boundary(group: list[Step], reads: Counter[Wire]) -> tuple[tuple[Wire, ...], tuple[Wire, ...]]:
    """What a group reads from outside, and what it makes that something else reads."""
    made = [wire for step in group for wire in step.outputs]
    inside = Counter(wire for step in group for wire in step.inputs)
    inputs = tuple(wire for wire in inside if wire not in set(made))
    return inputs, tuple(wire for wire in made if reads[wire] > inside[wire])


def _merge_host(draft: Draft, group: list[Step], reads: Counter[Wire]) -> Node:
    steps: list[HostStep] = []
    for step in group:
        assert isinstance(step.operation, Compute)
        steps.extend(step.operation.steps)
    inputs, outputs = _boundary(group, reads)
    source = next((step.source for step in group if step.source), None)
    return Node(Compute(tuple(steps)), inputs, outputs, draft.index, group[0].arm, source)


def _merge_torch(
    lowering: Lowering, draft: Draft, group: list[Step], reads: Counter[Wire], names: dict[str, int]
) -> Node:
    inputs, outputs = _boundary(group, reads)
    value_of: dict[Wire, Value] = {}
    size_of: dict[Wire, Value] = {}
    symbols: dict[Wire, str | None] = {}
    nodes = []
    for step in group:
        node = _separate_sizes(step, size_of)
        symbols = {**symbols, **_size_symbols(step, lowering)}
        nodes.append(node)
        value_of.update(zip(step.outputs, node.outputs, strict=True))
        for wire, value in zip(step.inputs, node.inputs, strict=True):
            if size_of.get(wire) is not value:
                value_of[wire] = value
    plain = tuple(wire for wire in inputs if wire in value_of)
    block = Block(
        _name(draft, nodes, names),
        tuple(nodes),
        (*(value_of[wire] for wire in plain), *size_of.values()),
        tuple(value_of[wire] for wire in outputs),
        (group[0].kind or "").startswith("flat"),
        {len(plain) + k: symbols.get(wire) for k, wire in enumerate(size_of)},
    )
    inputs = (*plain, *size_of)
    return Node(block, inputs, outputs, draft.index, group[0].arm, group[-1].source)


def _separate_sizes(step: Step, size_of: dict[Wire, Value]) -> ProgramNode:
    """The torch call with values of its own for the operands that are sizes."""
    node: ProgramNode = step.operation.node  # type: ignore[attr-defined]
    if not isinstance(node.operation, TorchCall) or not node.operation.sizes:
        return node
    inputs = list(node.inputs)
    for index in node.operation.sizes:
        wire = step.inputs[index]
        inputs[index] = size_of.setdefault(wire, Value(-1, wire.type))
    return replace(node, inputs=tuple(inputs))


def _size_symbols(step: Step, lowering: Lowering) -> dict[Wire, str | None]:
    """The symbols of the dimensions that size operands measure."""
    node: ProgramNode = step.operation.node  # type: ignore[attr-defined]
    found: dict[Wire, str | None] = {}
    for index in node.operation.sizes if isinstance(node.operation, TorchCall) else ():
        maker = lowering.flow.definitions[node.inputs[index]].node
        if maker is not None and isinstance(maker.operation, Size):
            kind = maker.inputs[0].type
            size = kind.shape[maker.operation.dimension]  # type: ignore[union-attr]
            found[step.inputs[index]] = size if isinstance(size, str) else None
    return found


def _name(draft: Draft, nodes: list[ProgramNode], names: dict[str, int]) -> str:
    """A readable name: the function and the first operations, numbered where it repeats."""
    calls = [node.operation.name.rsplit(".", 1)[-1] for node in nodes if isinstance(node.operation, TorchCall)]
    name = f"{draft.name}:{'_'.join(calls[:3])}"
    names[name] = names.get(name, 0) + 1
    return name if names[name] == 1 else f"{name}#{names[name]}"


def _order(nodes: list[Node]) -> list[Node]:
    steps = [Step(n, n.inputs, n.outputs, n.arm, n.source, None) for n in nodes]
    return [step.operation for step in _sort(steps)]  # type: ignore[misc]

