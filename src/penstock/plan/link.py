"""Links a graph for the machine: which values arrive together, what each arrival sets off, what
rows must store.

Values that always arrive in one event form a group. A node waits for the groups of its inputs that
are not certain to be there, and for its arm. A node with one trigger inside its arm runs at once,
as part of the event; all others are queued, so that rows from many events run together. Everything
here is static; the machine holds what changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.ir.graph import (
    Block,
    Call,
    Compute,
    Context,
    Enter,
    Fork,
    Graph,
    Home,
    Merge,
    Node,
    Primitive,
    Read,
    Switch,
    Wire,
)
from penstock.ir.types import TensorType
from penstock.plan.host_code import HostFunction, compile_steps

#: The trigger of a node that waits for its arm alone.
ACTIVATION = -1


@dataclass(slots=True, eq=False)
class Group:
    """Wires of one context that arrive together."""

    number: int
    context: int
    wires: tuple[Wire, ...]
    #: (field, column) of the wires that rows must keep.
    host_stores: list[tuple[int, int]] = field(default_factory=list)
    slot_stores: list[tuple[int, int]] = field(default_factory=list)
    #: Whether several events may bring rows of this group within one firing: what it sets off is
    #: then queued.
    is_scattered: bool = True
    inline: list[LinkedNode] = field(default_factory=list)
    queued: list[LinkedNode] = field(default_factory=list)
    counted: list[LinkedNode] = field(default_factory=list)
    #: (target group, fields of this group in the order of the target's wires)
    merges: list[tuple[Group, tuple[int, ...]]] = field(default_factory=list)
    #: (child column, parameter group, fields)
    arguments: list[tuple[int, Group, tuple[int, ...]]] = field(default_factory=list)
    #: Groups at each call site, with fields; by site.
    returns: dict[int, tuple[Group, tuple[int, ...]]] = field(default_factory=dict)
    next_values: list[tuple[Group, tuple[int, ...]]] = field(default_factory=list)
    exits: list[tuple[Group, tuple[int, ...]]] = field(default_factory=list)
    #: (position among the fork's outputs, field)
    joins: list[tuple[int, int]] = field(default_factory=list)
    #: (position among the entry's outputs, field)
    results: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Access:
    """How a node finds one of its inputs."""

    is_host: bool
    #: Field of the triggering group that brings it, for a node that runs at once.
    field: int | None = None
    #: Number of the graph input that it is.
    input: int | None = None
    #: Contexts to go up through, and the column there.
    above: tuple[int, ...] = ()
    column: int = -1


@dataclass(slots=True, eq=False)
class LinkedNode:
    """A node with what the machine needs to fire it."""

    node: Node
    number: int
    rank: int
    kind: str
    context: int
    #: Row of the context's pending counters, if it waits for several arrivals.
    counter: int | None = None
    waits: int = 1
    is_inline: bool = False
    is_data: bool = False
    #: Whether firing it may create rows.
    is_expanding: bool = False
    trigger: Group | None = None
    output: Group | None = None
    access: list[Access] = field(default_factory=list)
    function: HostFunction | None = None
    block: int = -1
    #: Place among the child columns: of a call the callee's row; of a loop how many iterations are
    #: running; of a
    #: fork, for each output, its array and how many elements are missing.
    child: int = -1
    #: Groups of a fork's outputs.
    outputs: list[Group] = field(default_factory=list)
    is_loop_switch: bool = False
    #: Whether no other node of the same run reads the array that this node writes to.
    is_last_use: bool = False


@dataclass(slots=True, eq=False)
class Arm:
    """What happens when rows enter an arm."""

    #: Queued firings that a row of this arm waits for.
    todo: int = 0
    calls: list[LinkedNode] = field(default_factory=list)
    inline: list[LinkedNode] = field(default_factory=list)
    queued: list[LinkedNode] = field(default_factory=list)
    counted: list[LinkedNode] = field(default_factory=list)

    @property
    def is_passive(self) -> bool:
        """Whether entering the arm sets nothing off."""
        return not (self.calls or self.inline or self.queued or self.counted)


@dataclass(slots=True, eq=False)
class LinkedContext:
    """A context with its groups, arms and column layout."""

    context: Context
    arms: list[Arm]
    nodes: list[LinkedNode] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    host_dtypes: list[str] = field(default_factory=list)
    host_wires: list[Wire] = field(default_factory=list)
    slot_wires: list[Wire] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    children: int = 0
    #: Contexts around this one, nearest first.
    ancestors: list[int] = field(default_factory=list)
    #: The queued pseudo-node that activates arm 0 of new rows; None where that sets nothing off.
    start: LinkedNode | None = None
    inputs: list[Group] = field(default_factory=list)
    #: The enter or fork node of a loop or for-each.
    opener: LinkedNode | None = None
    exit_groups: list[Group] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Linked:
    """A graph, linked."""

    graph: Graph
    contexts: list[LinkedContext]
    blocks: list[Node]
    calls: dict[int, dict[int, LinkedNode]]
    #: Column of each stored wire.
    columns: dict[Wire, int]
    default_dtype: str


def link(graph: Graph, ranks: Mapping[Node, int], default_dtype: str = "float32") -> Linked:
    """Link all contexts."""
    return _Linker(graph, ranks, default_dtype).run()


class _Linker:
    def __init__(self, graph: Graph, ranks: Mapping[Node, int], default_dtype: str) -> None:
        self.graph = graph
        self.linked = Linked(graph, [], [], {}, {}, default_dtype)
        self.ranks = ranks
        self.group_of: dict[Wire, Group] = {}
        self.field_of: dict[Wire, int] = {}
        self.stored: dict[Wire, None] = {}
        self.by_node: dict[Node, LinkedNode] = {}

    def run(self) -> Linked:
        for context in self.graph.contexts:
            arms = [Arm() for _ in context.arms]
            self.linked.contexts.append(LinkedContext(context, arms))
        self._form_groups()
        for linked in self.linked.contexts:
            self._find_ancestors(linked)
            self._link_nodes(linked)
        for linked in self.linked.contexts:
            self._set_triggers(linked)
        for linked in self.linked.contexts:
            self._connect(linked)
        self._lay_out_columns()
        return self.linked

    # ---- groups ----------------------------------------------------------------------------------

    def _form_groups(self) -> None:
        """Refine until wires in one class have sources in one class, site by site."""
        signatures = self._signatures()
        classes = dict.fromkeys(signatures, 0)
        count = 0
        while True:
            renumbered: dict[object, int] = {}
            refined = {
                wire: renumbered.setdefault(
                    (base, tuple(classes.get(source, -1) for source in sources)), len(renumbered)
                )
                for wire, (base, sources) in signatures.items()
            }
            classes = refined
            if len(renumbered) == count:
                break
            count = len(renumbered)
        members: dict[int, list[Wire]] = {}
        for wire, number in classes.items():
            members.setdefault(number, []).append(wire)
        for number, wires in members.items():
            group = Group(number, wires[0].context, tuple(wires))
            self.linked.contexts[group.context].groups.append(group)
            for position, wire in enumerate(wires):
                self.group_of[wire], self.field_of[wire] = group, position

    def _signatures(self) -> dict[Wire, tuple[tuple[object, ...], tuple[Wire, ...]]]:
        found: dict[Wire, tuple[tuple[object, ...], tuple[Wire, ...]]] = {}
        sites: dict[int, list[Node]] = {}
        for context in self.graph.contexts:
            for position, node in enumerate(context.nodes):
                self._sign_outputs(found, node, (context.index, position))
                if isinstance(node.operation, Call):
                    sites.setdefault(node.operation.callee, []).append(node)
        for context in self.graph.contexts:
            for position, wire in enumerate(context.inputs):
                sources: tuple[Wire, ...] = ()
                if context.kind == "function":
                    sources = tuple(n.inputs[position] for n in sites.get(context.index, ()))
                elif context.kind == "loop":
                    sources = (context.outputs[position],)
                found[wire] = (("input", context.index), sources)
        return found

    def _sign_outputs(
        self,
        found: dict[Wire, tuple[tuple[object, ...], tuple[Wire, ...]]],
        node: Node,
        place: tuple[int, int],
    ) -> None:
        for position, wire in enumerate(node.outputs):
            match node.operation:
                case Merge():
                    arms = tuple(source.arm for source in node.inputs)
                    found[wire] = (("merge", node.context, arms), node.inputs)
                case Call(callee=callee):
                    returned = self.graph.contexts[callee].outputs[position]
                    found[wire] = (("call", place), (returned,))
                case Enter(loop=loop):
                    left = self.graph.contexts[loop].exits[position]
                    found[wire] = (("exit", place), (left,))
                case Fork():
                    found[wire] = (("join", place, position), ())
                case _:
                    found[wire] = (("node", place), ())

    # ---- nodes -----------------------------------------------------------------------------------

    def _find_ancestors(self, linked: LinkedContext) -> None:
        parent = linked.context.parent
        while parent is not None:
            linked.ancestors.append(parent)
            parent = self.graph.contexts[parent].parent

    def _link_nodes(self, linked: LinkedContext) -> None:
        for node in linked.context.nodes:
            if isinstance(node.operation, Merge):
                continue
            kind = type(node.operation).__name__.lower()
            made = LinkedNode(node, len(self.by_node), self.ranks[node], kind, node.context)
            self.by_node[node] = made
            linked.nodes.append(made)
            match node.operation:
                case Block():
                    made.is_data, made.block = True, len(self.linked.blocks)
                    self.linked.blocks.append(node)
                case Read():
                    made.is_data = True
                case Compute(steps=steps):
                    made.function = compile_steps(
                        steps, node.inputs, node.outputs, self.linked.default_dtype
                    )
                case Call(callee=callee, site=site):
                    made.child = linked.children
                    linked.children += 1
                    self.linked.calls.setdefault(callee, {})[site] = made
                case Enter(loop=inner):
                    made.child = linked.children
                    linked.children += 1
                    self.linked.contexts[inner].opener = made
                case Fork(each=inner):
                    made.child = linked.children
                    linked.children += 2 * len(node.outputs)
                    made.outputs = [self.group_of[wire] for wire in node.outputs]
                    self.linked.contexts[inner].opener = made
                case Switch(arms=arms):
                    made.is_loop_switch = linked.context.kind == "loop" and arms == (1, 2)
                case Primitive(name="ArrayWrite"):
                    made.is_last_use = self._is_last_use(linked.context, node)
            if node.outputs and not isinstance(node.operation, Call | Enter | Fork):
                made.output = self.group_of[node.outputs[0]]

    def _is_last_use(self, context: Context, node: Node) -> bool:
        """Whether every other reader of the array is in an arm that excludes this one."""
        wire = node.inputs[0]
        if wire.context != context.index or wire.input is not None:
            return False
        readers = [
            (other.context, other.arm)
            for inner in self.graph.contexts
            for other in inner.nodes
            if other is not node and wire in other.inputs
        ]
        readers += [(context.index, 0) for w in (*context.outputs, *context.exits) if w is wire]
        return all(
            where == context.index and _exclude(context, node.arm, arm) for where, arm in readers
        )

    # ---- triggers --------------------------------------------------------------------------------

    def _set_triggers(self, linked: LinkedContext) -> None:
        certain = self._certain_groups(linked)
        makers = {w: n.operation for n in linked.context.nodes for w in n.outputs}
        scattered = (Merge, Call, Enter, Fork, Block, Read)
        for group in linked.groups:
            group.is_scattered = any(
                wire not in makers or isinstance(makers[wire], scattered) for wire in group.wires
            )
        for node in linked.nodes:
            if node.kind == "call":
                linked.arms[node.node.arm].calls.append(node)
                continue
            self._set_trigger(linked, node, certain[node.node.arm])

    def _certain_groups(self, linked: LinkedContext) -> list[set[int]]:
        """For each arm the groups that have arrived when a row enters it."""
        certain: list[set[int]] = [set() for _ in linked.arms]
        makers = {w: n for n in linked.context.nodes for w in n.outputs}
        switches = [n for n in linked.context.nodes if isinstance(n.operation, Switch)]
        for arm, parent in enumerate(linked.context.arms):
            if parent is None:
                continue
            switch = next(s for s in switches if arm in s.operation.arms)  # type: ignore[union-attr]
            certain[arm] = certain[parent] | self._before(linked, switch.inputs[0], makers)
        return certain

    def _before(self, linked: LinkedContext, wire: Wire, makers: dict[Wire, Node]) -> set[int]:
        found: set[int] = set()
        work = [wire]
        while work:
            item = work.pop()
            if not self._is_local(linked, item) or self.group_of[item].number in found:
                continue
            found.add(self.group_of[item].number)
            maker = makers.get(item)
            if maker is not None and not isinstance(maker.operation, Merge | Call):
                work.extend(maker.inputs)
        return found

    def _is_local(self, linked: LinkedContext, wire: Wire) -> bool:
        return (
            wire.context == linked.context.index
            and wire.input is None
            and wire.home is not Home.UNIFORM
        )

    def _set_trigger(self, linked: LinkedContext, node: LinkedNode, certain: set[int]) -> None:
        arm = linked.arms[node.node.arm]
        local = [wire for wire in node.node.inputs if self._is_local(linked, wire)]
        needs = {self.group_of[wire].number: self.group_of[wire] for wire in local}
        needs = {number: group for number, group in needs.items() if number not in certain}
        is_placed = any(wire.arm == node.node.arm for wire in local)
        waits_for_arm = not is_placed
        node.waits = len(needs) + waits_for_arm
        can_inline = not node.is_data and node.kind not in ("enter", "fork", "upload")
        if node.waits == 1:
            self._set_single(arm, node, next(iter(needs.values()), None), can_inline)
        else:
            node.counter = len(linked.waits)
            linked.waits.append(node.waits)
            for group in needs.values():
                group.counted.append(node)
            if waits_for_arm:
                arm.counted.append(node)
        if not node.is_inline:
            arm.todo += 1
        opens = {n.node.arm for n in linked.nodes if n.kind in ("call", "enter", "fork")}
        node.is_expanding = not node.is_inline and bool(
            node.kind in ("enter", "fork")
            or (
                (linked.context.kind == "loop" or opens)
                and node.kind in ("compute", "switch", "pass", "primitive")
            )
        )

    def _set_single(
        self, arm: Arm, node: LinkedNode, group: Group | None, can_inline: bool
    ) -> None:
        if group is None:
            node.is_inline = can_inline
            (arm.inline if can_inline else arm.queued).append(node)
            return
        node.is_inline = can_inline and not group.is_scattered
        node.trigger = group if node.is_inline else None
        (group.inline if node.is_inline else group.queued).append(node)

    # ---- connections -----------------------------------------------------------------------------

    def _connect(self, linked: LinkedContext) -> None:
        for node in linked.context.nodes:
            match node.operation:
                case Merge():
                    self._connect_merge(node)
                case Call(callee=callee, site=site):
                    self._connect_call(node, callee, site)
                case Enter(loop=loop):
                    self._connect_exits(node, self.linked.contexts[loop])
        index = linked.context.index
        linked.inputs = list(dict.fromkeys(self.group_of[w] for w in linked.context.inputs))
        if linked.context.kind == "loop":
            self._move_all(linked.context.outputs, linked.context.inputs, "next_values")
        if linked.context.kind == "each":
            for position, wire in enumerate(linked.context.outputs):
                self.group_of[wire].joins.append((position, self.field_of[wire]))
        if index == 0:
            for position, wire in enumerate(linked.context.outputs):
                self.group_of[wire].results.append((position, self.field_of[wire]))
        if not linked.arms[0].is_passive:
            start = LinkedNode(linked.nodes[0].node, -1 - index, 0, "start", index)
            start.is_expanding = True
            linked.start = start

    def _connect_merge(self, node: Node) -> None:
        target = self.group_of[node.outputs[0]]
        if node.outputs[0] is not target.wires[0]:
            return
        merges = [self._maker_of(wire, node.context) for wire in target.wires]
        for arm in range(len(node.inputs)):
            source = self.group_of[node.inputs[arm]]
            fields = tuple(self.field_of[merge.inputs[arm]] for merge in merges)
            source.merges.append((target, fields))

    def _maker_of(self, wire: Wire, context: int) -> Node:
        nodes = self.graph.contexts[context].nodes
        return next(node for node in nodes if wire in node.outputs)

    def _connect_call(self, node: Node, callee: int, site: int) -> None:
        inner = self.graph.contexts[callee]
        child = self.by_node[node].child
        for target, fields in self._moves(node.inputs, inner.inputs):
            source = self.group_of[node.inputs[inner.inputs.index(target.wires[0])]]
            source.arguments.append((child, target, fields))
        for target, fields in self._moves(inner.outputs, node.outputs):
            source = self.group_of[inner.outputs[node.outputs.index(target.wires[0])]]
            source.returns[site] = (target, fields)

    def _connect_exits(self, node: Node, inner: LinkedContext) -> None:
        self._move_all(inner.context.exits, node.outputs, "exits")

    def _move_all(self, sources: Sequence[Wire], targets: Sequence[Wire], how: str) -> None:
        for target, fields in self._moves(sources, targets):
            source = self.group_of[sources[list(targets).index(target.wires[0])]]
            getattr(source, how).append((target, fields))

    def _moves(
        self, sources: Sequence[Wire], targets: Sequence[Wire]
    ) -> list[tuple[Group, tuple[int, ...]]]:
        """For each target group the fields of its source group, in the order of the target's
        wires.
        """
        source_of = dict(zip(targets, sources, strict=True))
        groups = dict.fromkeys(self.group_of[wire] for wire in targets)
        return [
            (group, tuple(self.field_of[source_of[wire]] for wire in group.wires))
            for group in groups
        ]

    # ---- columns ---------------------------------------------------------------------------------

    def _lay_out_columns(self) -> None:
        for linked in self.linked.contexts:
            for node in linked.nodes:
                if node.kind == "call":
                    continue
                for wire in node.node.inputs:
                    if wire.input is not None or wire.home is Home.UNIFORM:
                        continue
                    if node.trigger is None or self.group_of[wire] is not node.trigger:
                        self.stored[wire] = None
        for wire in self.stored:
            self._add_column(wire)
        for linked in self.linked.contexts:
            for node in linked.nodes:
                if node.kind != "call":
                    node.access = [self._access(linked, node, wire) for wire in node.node.inputs]

    def _access(self, linked: LinkedContext, node: LinkedNode, wire: Wire) -> Access:
        made = Access(wire.home is Home.HOST, input=wire.input)
        if wire.input is not None or wire.home is Home.UNIFORM:
            return made
        if node.trigger is not None and self.group_of[wire] is node.trigger:
            made.field = self.field_of[wire]
            return made
        made.column = self.linked.columns[wire]
        if wire.context != linked.context.index:
            made.above = tuple(linked.ancestors[: linked.ancestors.index(wire.context) + 1])
        return made

    def _add_column(self, wire: Wire) -> None:
        linked = self.linked.contexts[wire.context]
        group, position = self.group_of[wire], self.field_of[wire]
        if wire.home is Home.HOST:
            assert isinstance(wire.type, TensorType)
            column = len(linked.host_wires)
            linked.host_wires.append(wire)
            linked.host_dtypes.append("int64" if wire.type.is_sequence else wire.type.dtype)
            group.host_stores.append((position, column))
        else:
            column = len(linked.slot_wires)
            linked.slot_wires.append(wire)
            group.slot_stores.append((position, column))
        self.linked.columns[wire] = column


def _exclude(context: Context, first: int, second: int) -> bool:
    """Whether no row is in both arms."""

    def around(arm: int | None) -> set[int]:
        found = set()
        while arm is not None:
            found.add(arm)
            arm = context.arms[arm]
        return found

    return first not in around(second) and second not in around(first)
