"""Rules for control flow: branches become arms, loops and for-each bodies become contexts.

Values that leave an arm, a loop or a function are brought into the arm that they leave from, so
that every move has a source that arrives in that arm and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ir.graph import BODY, Call, Enter, Fork, Home, Merge, Switch, Wire
from penstock.ir.program import Branch, ForEach, Loop, Node, Value
from penstock.ir.program import Call as ProgramCall
from penstock.passes.draft import Arm, Draft
from penstock.passes.lowering import Lowering


def lower_branch(lowering: Lowering, node: Node, arm: Arm) -> None:
    """A Switch, one arm for each body, and a Merge for each result."""
    branch, wires = node.operation, lowering.wires
    assert isinstance(branch, Branch)
    index = wires.get_host_wire(node.inputs[0], arm)
    arms = [arm.open((*node.site, number)) for number in range(len(branch.bodies))]
    numbers = tuple(inner.number for inner in arms)
    arm.add(Switch(numbers, branch.is_cond), (index,), (), node.source)
    for body, inner in zip(branch.bodies, arms, strict=True):
        lowering.lower_body(body, inner)
    for position, output in enumerate(node.outputs):
        for wire in wires.define(output, arm):
            sources = [
                wires.bring(body.outputs[position], wire.home, inner)
                for body, inner in zip(branch.bodies, arms, strict=True)
            ]
            arm.add(Merge(), sources, (wire,), node.source)


def lower_loop(lowering: Lowering, node: Node, arm: Arm) -> None:
    """An Enter, and a context whose Switch sends each row to the exit arm or to the body arm."""
    loop, wires = node.operation, lowering.wires
    assert isinstance(loop, Loop)
    inner = lowering.new_inner("loop", node, arm)
    inner.maximum_iterations = loop.maximum_iterations
    inner.parallel_iterations = loop.parallel_iterations
    inner.window = loop.window
    if loop.window > 1:
        inner.name += f".by{loop.window}"
    carried = _define_inputs(lowering, loop.condition.inputs, inner)
    exit_arm, body_arm = _lower_iteration(lowering, loop, node, inner)
    inner.outputs = _bring_all(lowering, loop.body.outputs, carried, body_arm)
    initial = _bring_all(lowering, node.inputs, carried, arm)
    outputs: list[Wire] = []
    for position, value in enumerate(node.outputs):
        for wire in wires.define(value, arm):
            outputs.append(wire)
            last = loop.condition.inputs[position]
            inner.exits.append(wires.bring(last, wire.home, exit_arm))
    inputs = (*initial, *lowering.invariants(inner))
    arm.add(Enter(inner.index, len(initial)), inputs, outputs, node.source)


def _lower_iteration(lowering: Lowering, loop: Loop, node: Node, inner: Draft) -> tuple[Arm, Arm]:
    """The condition, the Switch and the body; the exit arm and the body arm."""
    trunk = inner.trunk
    lowering.lower_body(loop.condition, trunk)
    index = lowering.wires.get_host_wire(loop.condition.outputs[0], trunk)
    exit_arm, body_arm = trunk.open(()), trunk.open((BODY,))
    switch = Switch((exit_arm.number, body_arm.number), is_cond=True)
    trunk.add(switch, (index,), (), node.source)
    lowering.lower_body(loop.body, body_arm)
    return exit_arm, body_arm


def _define_inputs(
    lowering: Lowering, values: Sequence[Value], inner: Draft
) -> list[tuple[int, Home]]:
    """Wires for the inputs of an inner context; for each the place of its value, and its home."""
    made = [
        (position, wire)
        for position, value in enumerate(values)
        for wire in lowering.wires.define(value, inner.trunk)
    ]
    inner.inputs = [wire for _, wire in made]
    return [(position, wire.home) for position, wire in made]


def _bring_all(
    lowering: Lowering, values: Sequence[Value], wanted: list[tuple[int, Home]], arm: Arm
) -> list[Wire]:
    """The values at these positions, each in the home in which it travels."""
    return [lowering.wires.bring(values[position], home, arm) for position, home in wanted]


def lower_for_each(lowering: Lowering, node: Node, arm: Arm) -> None:
    """A Fork, and a context with one row for each element; results are joined to arrays."""
    each, wires = node.operation, lowering.wires
    assert isinstance(each, ForEach)
    inner = lowering.new_inner("each", node, arm)
    inner.paths[0] = (BODY,)
    elements = _define_inputs(lowering, each.body.inputs, inner)
    lowering.lower_body(each.body, inner.trunk)
    outputs: list[Wire] = []
    for position, value in enumerate(node.outputs):
        if value in lowering.slices.data:
            outputs.append(wires.define_slot(value, arm))
            result = each.body.outputs[position]
            inner.outputs.append(wires.bring(result, Home.SLOT, inner.trunk))
    sequences = [wires.get_sequence(node.inputs[k], home, arm) for k, home in elements]
    length = wires.get_sequence(node.inputs[0], None, arm)
    inputs = (length, *sequences, *lowering.invariants(inner))
    arm.add(Fork(inner.index, len(sequences)), inputs, outputs, node.source)


def lower_call(lowering: Lowering, node: Node, arm: Arm) -> None:
    """A Call: arguments in the homes of the parameters, results in the homes that callers need."""
    assert isinstance(node.operation, ProgramCall)
    name, wires = node.operation.function, lowering.wires
    callee = lowering.functions[name]
    parameters = lowering.flow.program.function(name).body.inputs
    arguments = [
        wires.bring(argument, home, arm)
        for value, argument in zip(parameters, node.inputs, strict=True)
        for home in _parameter_homes(lowering, value, callee)
    ]
    outputs = [
        wires.define_slot(value, arm) if home is Home.SLOT else wires.define_host(value, arm)
        for value in node.outputs
        for home in result_homes(lowering, value)
    ]
    site = lowering.flow.sites[name].index(node)
    arm.add(Call(callee.index, site, (*arm.path, *node.site)), arguments, outputs, node.source)


def _parameter_homes(lowering: Lowering, value: Value, callee: Draft) -> list[Home]:
    found = [lowering.wires.host.get(value), lowering.wires.slot.get(value)]
    return [wire.home for wire in found if wire is not None and wire in callee.inputs]


def result_homes(lowering: Lowering, value: Value) -> list[Home]:
    """The homes in which a result of a call travels: the same at all call sites of the function."""
    flow, slices = lowering.flow, lowering.slices
    if flow.root(value) is not value:
        return []
    definition = flow.definitions[value]
    node = definition.node
    assert node is not None
    assert isinstance(node.operation, ProgramCall)
    results = [site.outputs[definition.index] for site in flow.sites[node.operation.function]]
    results = [result for result in results if flow.root(result) is result]
    is_host = any(map(slices.has_host_form, results))
    is_slot = any(map(slices.has_slot_form, results))
    return [home for home, is_it in ((Home.HOST, is_host), (Home.SLOT, is_slot)) if is_it]
