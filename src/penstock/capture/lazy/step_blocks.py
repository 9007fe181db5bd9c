"""The blocks of recorded steps, and the step kinds that launch them.

Blocks that compute the same have one batched form, whatever tensors they share and whichever of
their operands ask for gradients.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from penstock.calls.autocast import Autocast
from penstock.capture.lazy.kinds import LazyKind
from penstock.capture.lazy.library import Key, Leaf, Uniform, library
from penstock.ir.graph import Block, Home, Node, Wire
from penstock.ir.program import Node as ProgramNode
from penstock.ir.program import TorchCall, Value
from penstock.ir.types import TensorType
from penstock.plan.schedule import Shared
from penstock.plan.step_kinds import KeyOf, Row, StepKind
from penstock.run.step_blocks import StepBlock


def one_call_node(
    name: str, call: TorchCall, operands: Sequence[Any], returned: Sequence[Leaf], source: Any
) -> Node:
    """A graph node whose block is one torch call; its outputs are the new values among all that
    the call returns.
    """
    wires: list[Wire] = []
    for operand in operands:
        if isinstance(operand, Key):
            kind, home = TensorType("int64"), Home.HOST
        elif isinstance(operand, Uniform):
            kind, home = operand.kind.type, Home.UNIFORM
        else:
            kind, home = operand._kind.type, Home.SLOT
        number = operand.number if isinstance(operand, Uniform) else len(wires)
        wires.append(Wire(number, kind, home, 0, 0))
    parameters = tuple(Value(k, wire.type) for k, wire in enumerate(wires))
    made = tuple(Value(len(wires) + k, leaf.kind.type) for k, leaf in enumerate(returned))
    leaves = zip(made, returned, strict=True)
    results = tuple(value for value, leaf in leaves if leaf.result is not None)
    outputs = tuple(Wire(value.number, value.type, Home.SLOT, 0, 0) for value in results)
    inner = ProgramNode(call, parameters, made, source)
    block = Block(name, (inner,), parameters, results)
    return Node(block, tuple(wires), outputs, 0, 0, source)


def step_block(
    node: Node, operands: Sequence[Any], results: Sequence[LazyKind], autocast: Autocast
) -> StepBlock:
    """A block for operands and results of these kinds."""
    flows_in = (k for k, operand in enumerate(operands) if _flows(operand))
    flows_out = (k for k, kind in enumerate(results) if kind.requires_grad)
    return StepBlock(node, flows_in, flows_out, autocast)


def add_launch(
    name: str,
    node: Node,
    operands: Sequence[Any],
    results: Sequence[LazyKind],
    autocast: Autocast,
) -> int:
    """A step kind that launches a block; the number of the kind."""
    block = step_block(node, operands, results, autocast)
    known = library.alike.setdefault((_likeness(node), autocast), block)
    block.forms, block.training_forms = known.forms, known.training_forms
    stored = tuple(kind.stored for kind in results)
    with library.lock:
        number = library.add_block(block)
        return library.add_kind(StepKind(name, taken_operands(operands), stored, number))


def taken_operands(operands: Sequence[Any]) -> tuple[Row | KeyOf | Shared, ...]:
    """Operands as a step kind names them."""
    return tuple(map(_taken, operands))


def _taken(operand: Any) -> Row | KeyOf | Shared:
    if isinstance(operand, Key):
        return KeyOf(operand.draw)
    return Shared(operand.number) if isinstance(operand, Uniform) else Row()


def _likeness(node: Node) -> Hashable:
    """Equal for blocks that compute the same, whatever tensors they share: forms serve them all."""
    block = node.operation
    assert isinstance(block, Block)
    numbers: dict[Value, int] = {}
    for value in block.parameters:
        numbers[value] = len(numbers)
    calls = []
    for inner in block.nodes:
        taken = tuple(numbers[value] for value in inner.inputs)
        for value in inner.outputs:
            numbers[value] = len(numbers)
        calls.append((inner.operation, taken, len(inner.outputs)))
    results = tuple(numbers[value] for value in block.results)
    inputs = tuple((wire.type, wire.home) for wire in node.inputs)
    key = (inputs, tuple(calls), results)
    try:
        hash(key)
    except TypeError:
        return id(node)
    return key


def _flows(operand: Any) -> bool:
    if isinstance(operand, Key):
        return False
    kind: LazyKind = operand.kind if isinstance(operand, Uniform) else operand._kind
    return kind.requires_grad
