"""Lowers a structured program to a graph of primitives: contexts, arms, wires.

Each needed value gets a host wire, a slot wire, or both, as the slices say. Torch calls and host operations come out
one node each, in order; `fuse` makes blocks of them. Dead values are never lowered.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.ir.graph import (
    Call,
    Compute,
    Context,
    Enter,
    Fork,
    Graph,
    Home,
    HostStep,
    Input,
    Key,
    Merge,
    Node,
    Operation,
    Pass,
    Primitive,
    Read,
    Switch,
    Uniform,
    Upload,
    Wire,
)
from penstock.ir import program as ir
from penstock.ir.program import Body, Function, Program, Value
from penstock.ir.types import ArrayType, Type
from penstock.passes.array_types import resolve_array_types
from penstock.passes.flow import Flow
from penstock.passes.slicing import Slices, host_call

#: What a host operation takes: a wire of the host, or a number of the program.
HostOperand = Wire | int | float | bool


@dataclass(frozen=True, slots=True)
class TorchStep:
    """One torch call on data, before blocks are formed."""

    node: ir.Node


@dataclass(slots=True, eq=False)
class Draft:
    """A context under construction."""

    index: int
    kind: str
    name: str
    parent: int | None
    source: ir.Source | None = None
    arms: list[int | None] = field(default_factory=lambda: [None])
    #: The sites of the scopes from the context's own to each arm's, for random keys.
    paths: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    nodes: list[tuple[Operation | TorchStep, tuple[Wire, ...], tuple[Wire, ...], int, ir.Source | None]] = field(
        default_factory=list
    )
    inputs: list[Wire] = field(default_factory=list)
    outputs: list[Wire] = field(default_factory=list)
    exits: list[Wire] = field(default_factory=list)
    maximum_iterations: int | None = None
    parallel_iterations: int | None = None
    key_path: tuple[int, ...] = ()

    def new_arm(self, parent: int, path: tuple[int, ...]) -> int:
        """Open an arm inside another one."""
        self.arms.append(parent)
        self.paths.append(self.paths[parent] + path)
        return len(self.arms) - 1


@dataclass(slots=True)
class Lowering:
    """The state of one lowering."""

    flow: Flow
    slices: Slices
    arrays: dict[Value, ArrayType]
    drafts: list[Draft] = field(default_factory=list)
    functions: dict[str, Draft] = field(default_factory=dict)
    host: dict[Value, HostOperand] = field(default_factory=dict)
    slot: dict[Value, Wire] = field(default_factory=dict)
    uniform: dict[Value, Wire] = field(default_factory=dict)
    uploads: dict[tuple[Value, int, int], Wire] = field(default_factory=dict)
    uniforms: list[Uniform] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    wires: int = 0
    has_random: bool = False

    # ---- wires -------------------------------------------------------------------------------

    def new_wire(
        self, kind: Type, home: Home, context: int = 0, arm: int = 0, number: int | None = None
    ) -> Wire:
        """A fresh wire."""
        self.wires += 1
        return Wire(self.wires - 1, kind, home, context, arm, number)

    def add(
        self,
        draft: Draft,
        arm: int,
        operation: Operation | TorchStep,
        inputs: tuple[Wire, ...],
        outputs: tuple[Wire, ...],
        source: ir.Source | None,
    ) -> None:
        """Append a node to an arm."""
        draft.nodes.append((operation, inputs, outputs, arm, source))

    def define(self, value: Value, draft: Draft, arm: int) -> list[Wire]:
        """Wires for a value that control flow delivers: host, slot or both, as needed."""
        made: list[Wire] = []
        if self.flow.root(value) is not value:
            return made
        is_host = value in self.slices.host and value not in self.slices.read
        if is_host:
            self.host[value] = wire = self.new_wire(value.type, Home.HOST, draft.index, arm)
            made.append(wire)
        if value in self.slices.data and not self.slices.is_uploaded(value):
            made.append(self.define_slot(value, draft, arm))
        return made

    def define_slot(self, value: Value, draft: Draft, arm: int) -> Wire:
        """A slot wire for a value, read back at once if control needs it."""
        kind = self.arrays.get(value, value.type)
        self.slot[value] = wire = self.new_wire(kind, Home.SLOT, draft.index, arm)
        if value in self.slices.read:
            self.host[value] = host = self.new_wire(value.type, Home.HOST, draft.index, arm)
            definition = self.flow.definitions[value]
            source = definition.node.source if definition.node else None
            self.add(draft, arm, Read(), (wire,), (host,), source)
        return wire

    def get_host(self, value: Value) -> HostOperand:
        """The host form of a value."""
        value = self.flow.root(value)
        if value not in self.host:
            definition = self.flow.definitions[value]
            operation = definition.node.operation if definition.node else None
            if isinstance(operation, ir.Constant):
                return operation.value
            self.host[value] = self.share(value, Home.HOST)
        return self.host[value]

    def get_slot(self, value: Value, draft: Draft, arm: int) -> Wire:
        """The slot form of a value; a host or uniform value gets a slot."""
        value = self.flow.root(value)
        if value in self.slot:
            return self.slot[value]
        if value in self.slices.uniform:
            return self.share(value, Home.SLOT)
        key = (value, draft.index, arm)
        if key not in self.uploads:
            host = self.get_host(value)
            assert isinstance(host, Wire), "constants are uniform"
            self.uploads[key] = wire = self.new_wire(value.type, Home.SLOT, draft.index, arm)
            self.add(draft, arm, Upload(), (host,), (wire,), None)
        return self.uploads[key]

    def share(self, value: Value, home: Home) -> Wire:
        """The wire through which rows reach a uniform value."""
        number = len(self.inputs)
        wire = self.new_wire(value.type, home, 0, 0, number)
        forms = (wire, None) if home is Home.HOST else (None, wire)
        self.inputs.append(Input(value.type, None, self.get_uniform(value), *forms))
        if home is Home.SLOT:
            self.slot[value] = wire
        return wire

    def get_uniform(self, value: Value) -> Wire:
        """The wire of a uniform value, computed once per call."""
        value = self.flow.root(value)
        if value not in self.uniform:
            node = self.flow.definitions[value].node
            assert node is not None
            inputs = tuple(self.get_uniform(item) for item in node.inputs)
            rooted = replace(node, inputs=tuple(map(self.flow.root, node.inputs)))
            for index, output in enumerate(node.outputs):
                self.uniform[output] = wire = self.new_wire(output.type, Home.UNIFORM)
                self.uniforms.append(Uniform(wire, rooted, index, inputs))
        return self.uniform[value]

    def get_operand(self, value: Value) -> Wire:
        """The form in which a block takes a value: uniform, slot, or host (uploaded at the launch)."""
        value = self.flow.root(value)
        if value in self.slices.uniform:
            return self.get_uniform(value)
        if value in self.slot:
            return self.slot[value]
        host = self.get_host(value)
        assert isinstance(host, Wire)
        return host

    # ---- bodies ------------------------------------------------------------------------------

    def lower_body(self, body: Body, draft: Draft, arm: int) -> None:
        """All nodes of a body that something needs."""
        for node in body.nodes:
            if any(value in self.slices.live for value in node.outputs):
                self.lower_node(node, draft, arm)

    def lower_node(self, node: ir.Node, draft: Draft, arm: int) -> None:
        """One node, by the rule for its operation."""
        match node.operation:
            case ir.Constant() | ir.Captured():
                pass
            case ir.TorchCall() | ir.AsSequence():
                self.lower_torch(node, draft, arm)
            case ir.Element():
                self.lower_element(node, draft, arm)
            case ir.Size() | ir.ArraySize():
                self.lower_size(node, draft, arm)
            case ir.RandomKey(site=site):
                self.has_random = True
                outputs = tuple(self.define(node.outputs[0], draft, arm))
                path = (*draft.paths[arm], site)
                self.add(draft, arm, Key(path), (), outputs, node.source)
            case ir.Branch():
                self.lower_branch(node, draft, arm)
            case ir.Loop():
                self.lower_loop(node, draft, arm)
            case ir.Call():
                self.lower_call(node, draft, arm)
            case ir.ForEach():
                self.lower_for_each(node, draft, arm)
            case _:
                self.lower_array(node, draft, arm)

    def lower_torch(self, node: ir.Node, draft: Draft, arm: int) -> None:
        """A torch call: on the host, as data, or in both places; uniform ones wait until they are used."""
        output = node.outputs[0]
        if output in self.slices.host and output in self.slices.controllable:
            call = host_call(node, self.slices.default_dtype)
            assert call is not None
            operation, operands = call
            taken = [self.get_index(x, draft, arm) if isinstance(x, Value) else x for x in operands]
            self.compute(operation.name, taken, output, draft, arm, node.source)
        if all(value in self.slices.uniform for value in node.outputs):
            return
        wanted = [v for v in node.outputs if v in self.slices.data]
        if not wanted or (len(wanted) == 1 and self.slices.is_uploaded(output)):
            return
        inputs = tuple(self.get_operand(value) for value in node.inputs)
        rooted = replace(node, inputs=tuple(map(self.flow.root, node.inputs)))
        outputs = [self.new_wire(v.type, Home.SLOT, draft.index, arm) for v in node.outputs]
        self.add(draft, arm, TorchStep(rooted), inputs, tuple(outputs), node.source)
        for value, wire in zip(node.outputs, outputs, strict=True):
            self.slot[value] = wire
            if value in self.slices.read:
                self.host[value] = host = self.new_wire(value.type, Home.HOST, draft.index, arm)
                self.add(draft, arm, Read(), (wire,), (host,), node.source)

    def compute(
        self,
        name: str,
        operands: list[HostOperand | object],
        output: Value,
        draft: Draft,
        arm: int,
        source: ir.Source | None,
    ) -> None:
        """One host operation."""
        wire = self.new_wire(output.type, Home.HOST, draft.index, arm)
        self.host[output] = wire
        step = HostStep(name, tuple(operands), wire, source)  # type: ignore[arg-type]
        inputs = tuple(item for item in operands if isinstance(item, Wire))
        self.add(draft, arm, Compute((step,)), inputs, (wire,), source)

    def lower_element(self, node: ir.Node, draft: Draft, arm: int) -> None:
        sequence, index = node.inputs
        output = node.outputs[0]
        if output in self.slices.host and output in self.slices.controllable:
            operands = [self.get_host(sequence), self.get_index(index, draft, arm)]
            self.compute("read_table", operands, output, draft, arm, node.source)
        if output in self.slices.data and not self.slices.is_uploaded(output):
            position = self.get_index(index, draft, arm)
            inputs = (self.get_slot(sequence, draft, arm), position)
            wire = self.define_slot(output, draft, arm)
            self.add(draft, arm, Primitive("Element"), inputs, (wire,), node.source)

    def get_index(self, value: Value, draft: Draft, arm: int) -> Wire:
        """A host wire for an index or a size; a number of the program becomes a host computation."""
        host = self.get_host(value)
        return host if isinstance(host, Wire) else self.constant(host, value.type, draft, arm)

    def constant(self, number: float, kind: Type, draft: Draft, arm: int) -> Wire:
        """A host wire that holds one number for all rows."""
        wire = self.new_wire(kind, Home.HOST, draft.index, arm)
        self.add(draft, arm, Compute((HostStep("constant", (number,), wire),)), (), (wire,), None)
        return wire

    def lower_size(self, node: ir.Node, draft: Draft, arm: int) -> None:
        output, source = node.outputs[0], self.flow.root(node.inputs[0])
        if source in self.slices.host:
            self.compute("table_length", [self.get_host(source)], output, draft, arm, node.source)
            return
        wire = self.new_wire(output.type, Home.HOST, draft.index, arm)
        self.host[output] = wire
        dimension = node.operation.dimension if isinstance(node.operation, ir.Size) else 0
        operation = Primitive(type(node.operation).__name__, dimension=dimension)
        self.add(
            draft, arm, operation, (self.get_slot(source, draft, arm),), (wire,), node.source
        )

    def lower_array(self, node: ir.Node, draft: Draft, arm: int) -> None:
        name = type(node.operation).__name__
        match node.operation:
            case ir.ArrayNew(dynamic_size=is_dynamic):
                inputs = (self.get_index(node.inputs[0], draft, arm),)
                operation = Primitive(name, dynamic_size=is_dynamic)
            case ir.ArrayRead() | ir.ArrayWrite():
                array, index, *rest = node.inputs
                inputs = (
                    self.get_slot(array, draft, arm),
                    self.get_index(index, draft, arm),
                    *(self.get_slot(item, draft, arm) for item in rest),
                )
                operation = Primitive(name)
            case _:
                inputs = tuple(self.get_slot(item, draft, arm) for item in node.inputs)
                operation = Primitive(name)
        wire = self.define_slot(node.outputs[0], draft, arm)
        self.add(draft, arm, operation, inputs, (wire,), node.source)

    # ---- control flow --------------------------------------------------------------------------

    def lower_branch(self, node: ir.Node, draft: Draft, arm: int) -> None:
        branch = node.operation
        assert isinstance(branch, ir.Branch)
        index = self.get_index(node.inputs[0], draft, arm)
        arms = tuple(
            draft.new_arm(arm, (node.site, number)) for number in range(len(branch.bodies))
        )
        self.add(draft, arm, Switch(arms, branch.is_cond), (index,), (), node.source)
        for body, inner in zip(branch.bodies, arms, strict=True):
            self.lower_body(body, draft, inner)
        for position, output in enumerate(node.outputs):
            for wire in self.define(output, draft, arm):
                taken = [body.outputs[position] for body in branch.bodies]
                sources = tuple(
                    self.bring(value, wire.home, draft, inner)
                    for value, inner in zip(taken, arms, strict=True)
                )
                self.add(draft, arm, Merge(), sources, (wire,), node.source)

    def bring(self, value: Value, home: Home, draft: Draft, arm: int) -> Wire:
        """The value as a wire of this very arm."""
        if home is Home.HOST:
            host = self.get_host(value)
            if not isinstance(host, Wire):
                return self.constant(host, value.type, draft, arm)
            wire = host
        else:
            wire = self.get_slot(value, draft, arm)
        if (wire.context, wire.arm) == (draft.index, arm) and wire.input is None:
            if wire not in draft.inputs:
                return wire
        return self.pass_in(wire, draft, arm)

    def pass_in(self, wire: Wire, draft: Draft, arm: int) -> Wire:
        """An outer wire under a new name in this arm; values that pass together share one node."""
        new = self.new_wire(wire.type, wire.home, draft.index, arm)
        for position, (operation, inputs, outputs, where, source) in enumerate(draft.nodes):
            if isinstance(operation, Pass) and where == arm and outputs[0].home is wire.home:
                del draft.nodes[position]
                self.add(draft, arm, operation, (*inputs, wire), (*outputs, new), source)
                return new
        self.add(draft, arm, Pass(), (wire,), (new,), None)
        return new

    def lower_loop(self, node: ir.Node, draft: Draft, arm: int) -> None:
        loop = node.operation
        assert isinstance(loop, ir.Loop)
        inner = self.new_draft("loop", f"{draft.name}.loop", draft.index, node.source)
        inner.maximum_iterations = loop.maximum_iterations
        inner.parallel_iterations = loop.parallel_iterations
        inner.key_path = (*draft.paths[arm], node.site)
        carried: list[tuple[int, Wire]] = []
        for position, value in enumerate(loop.condition.inputs):
            carried += [(position, wire) for wire in self.define(value, inner, 0)]
        inner.inputs = [wire for _, wire in carried]
        self.lower_body(loop.condition, inner, 0)
        index = self.get_index(loop.condition.outputs[0], inner, 0)
        exit_arm, body_arm = inner.new_arm(0, (0,)), inner.new_arm(0, (1,))
        self.add(inner, 0, Switch((exit_arm, body_arm), True), (index,), (), node.source)
        self.lower_body(loop.body, inner, body_arm)
        inner.outputs = [
            self.bring(loop.body.outputs[position], wire.home, inner, body_arm)
            for position, wire in carried
        ]
        initial = tuple(
            self.bring(node.inputs[position], wire.home, draft, arm) for position, wire in carried
        )
        outputs: list[Wire] = []
        for position, value in enumerate(node.outputs):
            for wire in self.define(value, draft, arm):
                outputs.append(wire)
                last = loop.condition.inputs[position]
                inner.exits.append(self.bring(last, wire.home, inner, exit_arm))
        needed = self.invariants(inner)
        enter = Enter(inner.index, len(initial))
        self.add(draft, arm, enter, (*initial, *needed), tuple(outputs), node.source)

    def lower_for_each(self, node: ir.Node, draft: Draft, arm: int) -> None:
        each = node.operation
        assert isinstance(each, ir.ForEach)
        inner = self.new_draft("each", f"{draft.name}.each", draft.index, node.source)
        inner.key_path = (*draft.paths[arm], node.site)
        elements: list[tuple[int, Wire]] = []
        for position, value in enumerate(each.body.inputs):
            elements += [(position, wire) for wire in self.define(value, inner, 0)]
        inner.inputs = [wire for _, wire in elements]
        self.lower_body(each.body, inner, 0)
        outputs: list[Wire] = []
        for position, value in enumerate(node.outputs):
            if value in self.slices.data:
                outputs.append(self.define_slot(value, draft, arm))
                inner.outputs.append(self.bring(each.body.outputs[position], Home.SLOT, inner, 0))
        sequences = tuple(
            self.sequence(node.inputs[position], wire.home, draft, arm)
            for position, wire in elements
        )
        length = self.sequence(node.inputs[0], None, draft, arm)
        needed = self.invariants(inner)
        fork = Fork(inner.index, len(sequences))
        self.add(draft, arm, fork, (length, *sequences, *needed), tuple(outputs), node.source)

    def sequence(self, value: Value, home: Home | None, draft: Draft, arm: int) -> Wire:
        """A sequence as a host table or with slots; in the form that there is, if `home` is None."""
        root = self.flow.root(value)
        if home is None:
            home = Home.HOST if root in self.slices.host else Home.SLOT
        if home is Home.HOST:
            host = self.get_host(value)
            assert isinstance(host, Wire)
            return host
        return self.get_slot(value, draft, arm)

    def invariants(self, inner: Draft) -> tuple[Wire, ...]:
        """What the context and those inside it read from the contexts around it."""
        inside = {inner.index}
        for draft in self.drafts:
            if draft.parent in inside:
                inside.add(draft.index)
        found: dict[Wire, None] = {}
        for draft in (self.drafts[index] for index in sorted(inside)):
            for _, inputs, _, _, _ in draft.nodes:
                for wire in inputs:
                    if wire.context not in inside and wire.input is None:
                        found[wire] = None
        return tuple(wire for wire in found if wire.home is not Home.UNIFORM)

    def lower_call(self, node: ir.Node, draft: Draft, arm: int) -> None:
        assert isinstance(node.operation, ir.Call)
        callee = self.functions[node.operation.function]
        body = self.flow.program.function(node.operation.function).body
        arguments = tuple(
            self.bring(argument, wire.home, draft, arm)
            for value, argument in zip(body.inputs, node.inputs, strict=True)
            for wire in self.parameter_wires(value, callee)
        )
        outputs = [wire for value in node.outputs for wire in self.define_result(value, draft, arm)]
        site = self.flow.sites[node.operation.function].index(node)
        call = Call(callee.index, site, (*draft.paths[arm], node.site))
        self.add(draft, arm, call, arguments, tuple(outputs), node.source)

    def parameter_wires(self, value: Value, callee: Draft) -> list[Wire]:
        found = [self.host.get(value), self.slot.get(value)]
        return [wire for wire in found if isinstance(wire, Wire) and wire in callee.inputs]

    def define_result(self, value: Value, draft: Draft, arm: int) -> list[Wire]:
        """Wires for one result of a call, in all homes in which any caller of the function needs it."""
        wires: list[Wire] = []
        if self.flow.root(value) is not value:
            return wires
        for home in self.result_homes(value):
            if home is Home.SLOT:
                wires.append(self.define_slot(value, draft, arm))
            else:
                wires.append(self.new_wire(value.type, home, draft.index, arm))
                self.host[value] = wires[-1]
        return wires

    def result_homes(self, value: Value) -> list[Home]:
        """The homes in which the callee's result travels: the same at all its call sites."""
        node = self.flow.definitions[value].node
        assert node is not None and isinstance(node.operation, ir.Call)
        position = self.flow.definitions[value].index
        results = [site.outputs[position] for site in self.flow.sites[node.operation.function]]
        results = [result for result in results if self.flow.root(result) is result]
        slices = self.slices
        is_host = any(r in slices.host and r not in slices.read for r in results)
        is_slot = any(r in slices.data and not slices.is_uploaded(r) for r in results)
        return [home for home, is_it in ((Home.HOST, is_host), (Home.SLOT, is_slot)) if is_it]

    # ---- functions -----------------------------------------------------------------------------

    def new_draft(self, kind: str, name: str, parent: int | None, source: ir.Source | None) -> Draft:
        draft = Draft(len(self.drafts), kind, name, parent, source)
        self.drafts.append(draft)
        return draft

    def declare(self, function: Function) -> None:
        """The context of a function, with its parameters."""
        draft = self.new_draft("function", function.name, None, function.source)
        self.functions[function.name] = draft
        if function is self.flow.program.entry:
            self.declare_inputs(function)
            return
        for value in function.body.inputs:
            if value in self.slices.live:
                draft.inputs += self.define(value, draft, 0)

    def declare_inputs(self, function: Function) -> None:
        for number, value in enumerate(function.body.inputs):
            host = slot = None
            position = len(self.inputs)
            if value in self.slices.host and value in self.slices.controllable:
                host = self.new_wire(value.type, Home.HOST, 0, 0, position)
                self.host[value] = host
            if value in self.slices.data and not self.slices.is_uploaded(value):
                slot = self.new_wire(value.type, Home.SLOT, 0, 0, position)
                self.slot[value] = slot
            self.inputs.append(Input(value.type, number, None, host, slot))
        for value in function.body.inputs:
            if value in self.slices.read:
                wire = self.new_wire(value.type, Home.HOST)
                self.host[value] = wire
                self.add(self.drafts[0], 0, Read(), (self.slot[value],), (wire,), None)

    def lower_function(self, function: Function) -> None:
        """The nodes of a function and the results it returns."""
        draft = self.functions[function.name]
        self.lower_body(function.body, draft, 0)
        if function is self.flow.program.entry:
            for value in function.body.outputs:
                home = Home.HOST if self.slices.is_uploaded(value) else Home.SLOT
                draft.outputs.append(self.bring(value, home, draft, 0))
            return
        sites = self.flow.sites[function.name]
        for position, value in enumerate(function.body.outputs):
            results = [site.outputs[position] for site in sites]
            live = [r for r in results if r in self.slices.live and self.flow.root(r) is r]
            for home in self.result_homes(live[0]) if live else ():
                draft.outputs.append(self.bring(value, home, draft, 0))


def lower(flow: Flow, slices: Slices) -> tuple[Lowering, list[Draft]]:
    """The drafts of all contexts; `fuse.form_blocks` makes the graph of them."""
    lowering = Lowering(flow, slices, resolve_array_types(flow))
    for function in flow.program.functions:
        lowering.declare(function)
    for function in flow.program.functions:
        lowering.lower_function(function)
    return lowering, lowering.drafts


def wrap_entry(program: Program) -> Program:
    """A program whose entry is called by nobody: a recursive entry gets a caller of its own."""
    entry = program.entry
    names = {
        node.operation.function
        for function in program.functions
        for node in function.body.walk()
        if isinstance(node.operation, ir.Call)
    }
    if entry.name not in names:
        return program
    inputs = tuple(Value(-1 - k, value.type) for k, value in enumerate(entry.body.inputs))
    outputs = tuple(
        Value(-1 - len(inputs) - k, value.type) for k, value in enumerate(entry.body.outputs)
    )
    call = ir.Node(ir.Call(entry.name), inputs, outputs, entry.source)
    main = Function(f"{entry.name}.main", Body(inputs, (call,), outputs), entry.source)
    return replace(program, functions=(main, *program.functions))


def finish(lowering: Lowering, nodes: dict[int, list[Node]]) -> Graph:
    """The graph of the drafts with these nodes."""
    contexts = tuple(
        Context(
            draft.index,
            draft.kind,
            draft.name,
            draft.parent,
            tuple(draft.arms),
            tuple(nodes[draft.index]),
            tuple(draft.inputs),
            tuple(draft.outputs),
            tuple(draft.exits),
            draft.maximum_iterations,
            draft.parallel_iterations,
            draft.source,
            draft.key_path,
        )
        for draft in lowering.drafts
    )
    return Graph(
        contexts, tuple(lowering.uniforms), tuple(lowering.inputs), lowering.has_random
    )
