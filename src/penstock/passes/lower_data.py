"""Rules for operations that compute or move values: torch calls, elements, sizes, arrays, keys."""

from __future__ import annotations

from penstock.ir.graph import Key, Primitive
from penstock.ir.program import ArrayNew, Node, RandomKey, Size, TorchCall, Value
from penstock.passes.controllable import host_call
from penstock.passes.draft import Arm, TorchStep
from penstock.passes.lowering import Lowering
from penstock.passes.wires import HostOperand


def lower_uniform(lowering: Lowering, node: Node, arm: Arm) -> None:
    """A constant or a captured tensor: nothing happens until something reads it."""


def lower_torch(lowering: Lowering, node: Node, arm: Arm) -> None:
    """A torch call: on the host, as data, or both; a uniform one waits until it is used.

    A size comes from the host, also where the same number has a slot.
    """
    slices, wires = lowering.slices, lowering.wires
    if slices.has_host_form(node.outputs[0]):
        _lower_host_call(lowering, node, arm)
    if all(value in slices.uniform for value in node.outputs):
        return
    if not any(slices.has_slot_form(value) for value in node.outputs):
        return
    sizes = node.operation.sizes if isinstance(node.operation, TorchCall) else frozenset()
    inputs = [
        wires.get_host_wire(value, arm) if index in sizes else wires.get_operand(value)
        for index, value in enumerate(node.inputs)
    ]
    outputs = [wires.define_slot(value, arm) for value in node.outputs]
    arm.add(TorchStep(wires.rooted(node)), inputs, outputs, node.source)


def _lower_host_call(lowering: Lowering, node: Node, arm: Arm) -> None:
    call = host_call(node, lowering.slices.default_dtype)
    assert call is not None, "what is computed on the host is in the table"
    operation, items = call
    operands: list[HostOperand] = [
        lowering.wires.get_host_wire(item, arm) if isinstance(item, Value) else item
        for item in items
    ]
    lowering.wires.define_step(operation.name, operands, node.outputs[0], arm, node.source)


def lower_element(lowering: Lowering, node: Node, arm: Arm) -> None:
    """An element: out of a host table, as a slot of a sequence, or both."""
    slices, wires = lowering.slices, lowering.wires
    sequence, index = node.inputs
    output = node.outputs[0]
    if slices.has_host_form(output):
        operands = [wires.get_host(sequence), wires.get_host_wire(index, arm)]
        wires.define_step("read_table", operands, output, arm, node.source)
    if slices.has_slot_form(output):
        position = wires.get_host_wire(index, arm)
        inputs = (wires.get_slot(sequence, arm), position)
        wire = wires.define_slot(output, arm)
        arm.add(Primitive("Element"), inputs, (wire,), node.source)


def lower_size(lowering: Lowering, node: Node, arm: Arm) -> None:
    """A size or length: of a host table, or of what has slots."""
    wires, output = lowering.wires, node.outputs[0]
    source = lowering.flow.root(node.inputs[0])
    if source in lowering.slices.host:
        wires.define_step("table_length", [wires.get_host(source)], output, arm, node.source)
        return
    wire = wires.define_host(output, arm)
    dimension = node.operation.dimension if isinstance(node.operation, Size) else 0
    operation = Primitive(type(node.operation).__name__, dimension=dimension)
    arm.add(operation, (wires.get_slot(source, arm),), (wire,), node.source)


def lower_key(lowering: Lowering, node: Node, arm: Arm) -> None:
    """The key of a random operation."""
    assert isinstance(node.operation, RandomKey)
    outputs = lowering.wires.define(node.outputs[0], arm)
    arm.add(Key((*arm.path, *node.operation.site)), (), outputs, node.source)


def lower_new_array(lowering: Lowering, node: Node, arm: Arm) -> None:
    """A new array takes its size from the host."""
    assert isinstance(node.operation, ArrayNew)
    operation = Primitive("ArrayNew", dynamic_size=node.operation.dynamic_size)
    inputs = (lowering.wires.get_host_wire(node.inputs[0], arm),)
    arm.add(operation, inputs, (lowering.wires.define_slot(node.outputs[0], arm),), node.source)


def lower_array_access(lowering: Lowering, node: Node, arm: Arm) -> None:
    """A read or write: the array and the element have slots, the index is on the host."""
    wires = lowering.wires
    array, index, *element = node.inputs
    inputs = (
        wires.get_slot(array, arm),
        wires.get_host_wire(index, arm),
        *(wires.get_slot(item, arm) for item in element),
    )
    operation = Primitive(type(node.operation).__name__)
    arm.add(operation, inputs, (wires.define_slot(node.outputs[0], arm),), node.source)


def lower_whole_array(lowering: Lowering, node: Node, arm: Arm) -> None:
    """An array of a sequence's elements, or a sequence of an array's."""
    inputs = [lowering.wires.get_slot(item, arm) for item in node.inputs]
    operation = Primitive(type(node.operation).__name__)
    arm.add(operation, inputs, (lowering.wires.define_slot(node.outputs[0], arm),), node.source)
