"""Makes one node of a group of torch calls (a block) or of host operations (a computation)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from penstock.ir.graph import Block, Compute, HostStep, Wire
from penstock.ir.program import Node, Operation, RowLoop, Size, TorchCall, Value
from penstock.ir.types import TensorType
from penstock.passes.draft import DraftNode, TorchStep
from penstock.passes.flow import Flow

#: Calls that say little about what a block does.
_RESHAPING = frozenset(
    [
        "unsqueeze",
        "squeeze",
        "view",
        "reshape",
        "expand",
        "transpose",
        "permute",
        "contiguous",
        "get",  # x.T and the like
    ]
)


@dataclass(slots=True)
class BlockMaker:
    """Makes the blocks of one graph; each gets a name of its own."""

    flow: Flow
    #: How often each wire is read, inside groups and outside.
    reads: Counter[Wire]
    #: How many blocks have asked for a name.
    names: Counter[str] = field(default_factory=Counter)

    def merge(self, context: str, kind: str | None, group: Sequence[DraftNode]) -> DraftNode:
        """One node for a group of one kind; a node that stands alone is itself."""
        if kind is None:
            return group[0]
        return (
            self._merge_host(group) if kind == "host" else self._merge_torch(context, kind, group)
        )

    def _merge_host(self, group: Sequence[DraftNode]) -> DraftNode:
        steps: list[HostStep] = []
        for node in group:
            assert isinstance(node.operation, Compute)
            steps.extend(node.operation.steps)
        inputs, outputs = self._boundary(group)
        source = next((node.source for node in group if node.source), None)
        return DraftNode(Compute(tuple(steps)), inputs, outputs, group[0].arm, source)

    def _merge_torch(self, context: str, kind: str, group: Sequence[DraftNode]) -> DraftNode:
        inputs, outputs = self._boundary(group)
        inside = _Inside(self.flow)
        calls = [inside.take(node) for node in group]
        plain = tuple(wire for wire in inputs if wire in inside.values)
        parameters = [inside.values[wire] for wire in plain]
        sizes = {len(plain) + k: inside.symbols[wire] for k, wire in enumerate(inside.sizes)}
        block = Block(
            self._name(context, calls),
            tuple(calls),
            (*parameters, *inside.sizes.values()),
            tuple(inside.values[wire] for wire in outputs),
            kind.startswith("flat"),
            sizes,
            calls[0].device,
        )
        inputs = (*plain, *inside.sizes)
        return DraftNode(block, inputs, outputs, group[0].arm, group[-1].source)

    def _boundary(self, group: Sequence[DraftNode]) -> tuple[tuple[Wire, ...], tuple[Wire, ...]]:
        """What a group reads from outside, and what it makes that something else reads."""
        made = dict.fromkeys(wire for node in group for wire in node.outputs)
        inside = Counter(wire for node in group for wire in node.inputs)
        inputs = tuple(wire for wire in inside if wire not in made)
        return inputs, tuple(wire for wire in made if self.reads[wire] > inside[wire])

    def _name(self, context: str, nodes: Sequence[Node]) -> str:
        """A readable name: the context and the first operations that compute something, numbered
        where it repeats.
        """
        words = [_word(node.operation) for node in nodes]
        telling = [word for word in words if word and word not in _RESHAPING]
        telling = telling or list(filter(None, words)) or ["move"]
        name = f"{context}:{'_'.join(telling[:3])}"
        self.names[name] += 1
        return name if self.names[name] == 1 else f"{name}#{self.names[name]}"


def _word(operation: Operation) -> str | None:
    if isinstance(operation, RowLoop):
        return "loop"
    if isinstance(operation, TorchCall):
        return operation.name.rsplit(".", 1)[-1].strip("_")
    return None


@dataclass(slots=True)
class _Inside:
    """The values that stand for wires in a block; a size has a value of its own."""

    flow: Flow
    values: dict[Wire, Value] = field(default_factory=dict)
    #: Wires that calls take as Python ints.
    sizes: dict[Wire, Value] = field(default_factory=dict)
    #: The symbols of the dimensions that these measure, where that is known.
    symbols: dict[Wire, str | None] = field(default_factory=dict)

    def take(self, node: DraftNode) -> Node:
        """The torch call of a node, with its values noted."""
        assert isinstance(node.operation, TorchStep)
        call = node.operation.node
        sizes = call.operation.sizes if isinstance(call.operation, TorchCall) else frozenset()
        self.values.update(zip(node.outputs, call.outputs, strict=True))
        inputs = list(call.inputs)
        for index, wire in enumerate(node.inputs):
            if index in sizes:
                inputs[index] = self.sizes.setdefault(wire, Value(-1, wire.type))
                self.symbols[wire] = self.symbols.get(wire) or self._symbol(call.inputs[index])
            else:
                inputs[index] = self.values.setdefault(wire, call.inputs[index])
        return replace(call, inputs=tuple(inputs))

    def _symbol(self, value: Value) -> str | None:
        """The symbol of the dimension whose size this value is."""
        node = self.flow.definitions[value].node
        if node is None or not isinstance(node.operation, Size):
            return None
        kind = node.inputs[0].type
        assert isinstance(kind, TensorType)
        size = kind.shape[node.operation.dimension]
        return size if isinstance(size, str) else None
