"""The wires of program values: each needed value has a host wire, a slot wire, or both.

Values are looked up by their root, the value that they always equal. A form that a value does not
have yet is made when something asks for it: an Upload, a shared input, a Pass into an arm.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.ir.graph import Compute, Home, HostStep, Input, Pass, Read, Uniform, Upload, Wire
from penstock.ir.program import Constant, Node, Source, Value
from penstock.ir.types import ArrayType, Type
from penstock.passes.draft import Arm, DraftNode
from penstock.passes.flow import Flow
from penstock.passes.slicing import Slices

#: What a host operation takes: a wire of the host, or a number of the program.
HostOperand = Wire | int | float | bool


@dataclass(slots=True)
class Wires:
    """The wires made so far, by value."""

    flow: Flow
    slices: Slices
    #: Full types of arrays.
    arrays: dict[Value, ArrayType]
    host: dict[Value, Wire] = field(default_factory=dict)
    slot: dict[Value, Wire] = field(default_factory=dict)
    uniform: dict[Value, Wire] = field(default_factory=dict)
    #: Slots of host values, by the context and arm that uploads them.
    uploads: dict[tuple[Value, int, int], Wire] = field(default_factory=dict)
    uniforms: list[Uniform] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    #: For a root the value that stands for it where its type is written with other symbols.
    alike: dict[tuple[Value, Type], Value] = field(default_factory=dict)
    count: int = 0

    def new(
        self, kind: Type, home: Home, arm: Arm | None = None, number: int | None = None
    ) -> Wire:
        """A fresh wire; without an arm it belongs to the call as a whole."""
        self.count += 1
        context, position = (arm.draft.index, arm.number) if arm else (0, 0)
        return Wire(self.count - 1, kind, home, context, position, number)

    # ---- defining ------------------------------------------------------------------------------

    def define(self, value: Value, arm: Arm) -> list[Wire]:
        """Wires for a value that control flow delivers: host, slot or both, as needed."""
        made: list[Wire] = []
        if self.flow.root(value) is not value:
            return made
        if self.slices.has_host_form(value):
            made.append(self.define_host(value, arm))
        if self.slices.has_slot_form(value):
            made.append(self.define_slot(value, arm))
        return made

    def define_host(self, value: Value, arm: Arm) -> Wire:
        """A host wire for a value."""
        self.host[value] = wire = self.new(value.type, Home.HOST, arm)
        return wire

    def define_slot(self, value: Value, arm: Arm) -> Wire:
        """A slot wire for a value, read back at once if control needs it."""
        self.slot[value] = wire = self.new(self.arrays.get(value, value.type), Home.SLOT, arm)
        if value in self.slices.read:
            node = self.flow.definitions[value].node
            arm.add(Read(), (wire,), (self.define_host(value, arm),), node.source if node else None)
        return wire

    def define_step(
        self,
        name: str,
        operands: list[HostOperand],
        output: Value,
        arm: Arm,
        source: Source | None,
    ) -> None:
        """A host wire for what one host operation computes."""
        wire = self.define_host(output, arm)
        inputs = [item for item in operands if isinstance(item, Wire)]
        arm.add(Compute((HostStep(name, tuple(operands), wire, source),)), inputs, (wire,), source)

    def constant(self, number: float, kind: Type, arm: Arm) -> Wire:
        """A host wire that holds one number for all rows."""
        wire = self.new(kind, Home.HOST, arm)
        arm.add(Compute((HostStep("constant", (number,), wire),)), (), (wire,))
        return wire

    # ---- finding -------------------------------------------------------------------------------

    def get_host(self, value: Value) -> HostOperand:
        """The host form of a value: a wire, or a number of the program."""
        value = self.flow.root(value)
        if value not in self.host:
            node = self.flow.definitions[value].node
            if node is not None and isinstance(node.operation, Constant):
                return node.operation.value
            self.host[value] = self._share(value, Home.HOST)
        return self.host[value]

    def get_host_wire(self, value: Value, arm: Arm) -> Wire:
        """The host form of a value as a wire, also where it is a number of the program."""
        host = self.get_host(value)
        return host if isinstance(host, Wire) else self.constant(host, value.type, arm)

    def get_slot(self, value: Value, arm: Arm) -> Wire:
        """The slot form of a value; a host or uniform value gets a slot."""
        value = self.flow.root(value)
        if value in self.slot:
            return self.slot[value]
        if value in self.slices.uniform:
            self.slot[value] = shared = self._share(value, Home.SLOT)
            return shared
        key = (value, arm.draft.index, arm.number)
        if key not in self.uploads:
            host = self.get_host_wire(value, arm)
            self.uploads[key] = wire = self.new(value.type, Home.SLOT, arm)
            arm.add(Upload(), (host,), (wire,))
        return self.uploads[key]

    def get_uniform(self, value: Value) -> Wire:
        """The wire of a uniform value, computed once per call."""
        value = self.flow.root(value)
        if value not in self.uniform:
            node = self.flow.definitions[value].node
            assert node is not None
            inputs = tuple(map(self.get_uniform, node.inputs))
            rooted = self.rooted(node)
            for index, output in enumerate(node.outputs):
                self.uniform[output] = wire = self.new(output.type, Home.UNIFORM)
                self.uniforms.append(Uniform(wire, rooted, index, inputs))
        return self.uniform[value]

    def get_operand(self, value: Value) -> Wire:
        """The form in which a block takes a value: uniform, slot, or host."""
        value = self.flow.root(value)
        if value in self.slices.uniform:
            return self.get_uniform(value)
        if value in self.slot:
            return self.slot[value]
        host = self.get_host(value)
        assert isinstance(host, Wire)
        return host

    def get_sequence(self, value: Value, home: Home | None, arm: Arm) -> Wire:
        """A sequence as a host table or with slots; the form that there is, if `home` is None."""
        is_table = self.flow.root(value) in self.slices.host
        if home is Home.HOST or (home is None and is_table):
            return self.get_host_wire(value, arm)
        return self.get_slot(value, arm)

    def rooted(self, node: Node) -> Node:
        """The node with the roots of its inputs.

        A callee has symbols of its own: there one value of its types stands for the root.
        """
        return replace(node, inputs=tuple(map(self._rooted, node.inputs)))

    def _rooted(self, value: Value) -> Value:
        root = self.flow.root(value)
        return root if root.type == value.type else self.alike.setdefault((root, value.type), value)

    def _share(self, value: Value, home: Home) -> Wire:
        """The wire through which rows reach a uniform value."""
        wire = self.new(value.type, home, number=len(self.inputs))
        forms = (wire, None) if home is Home.HOST else (None, wire)
        self.inputs.append(Input(value.type, None, self.get_uniform(value), *forms))
        return wire

    # ---- bringing into an arm ------------------------------------------------------------------

    def bring(self, value: Value, home: Home, arm: Arm) -> Wire:
        """The value as a wire that a node of this very arm makes."""
        if home is Home.HOST:
            wire = self.get_host_wire(value, arm)
        else:
            wire = self.get_slot(value, arm)
        return wire if arm.makes(wire) else self._pass_in(wire, arm)

    def _pass_in(self, wire: Wire, arm: Arm) -> Wire:
        """An outer wire under a new name in this arm; values that pass together share one node."""
        new = self.new(wire.type, wire.home, arm)
        shared = next((node for node in arm.draft.nodes if _passes(node, wire.home, arm)), None)
        if shared is None:
            arm.add(Pass(), (wire,), (new,))
        else:  # at the end, after what makes the new input
            arm.draft.nodes.remove(shared)
            arm.add(Pass(), (*shared.inputs, wire), (*shared.outputs, new), shared.source)
        return new


def _passes(node: DraftNode, home: Home, arm: Arm) -> bool:
    is_here = node.arm == arm.number and node.outputs[:1] and node.outputs[0].home is home
    return bool(is_here) and isinstance(node.operation, Pass)
