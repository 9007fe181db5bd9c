"""docs/semantics.md: rows, values, when a node fires (S1 to S24)."""

from __future__ import annotations

import torch

import penstock as ps
from penstock.ir.graph import Block, Call, Compute, Home, Merge, Primitive, Read, Switch, Upload
from penstock.plan.schedule import Shared
from penstock.run import engine
from tests.semantics.page.watch import Watch


@ps.function
def countdown(x, n):
    """sin(sin(... x)) n times, by recursion."""
    return ps.cond(n > 0, lambda: countdown(x, n - 1).sin(), lambda: x)


@ps.function
def repeat(x, n):
    """sin(sin(... x)) n times, by a loop."""
    return ps.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x.sin()), (0, x))[1]


@ps.function
def each_squared(xs):
    return ps.map_fn(lambda x: x * x, xs)


@ps.function
def sine_or_cosine(x, n):
    return ps.cond(n > 0, lambda: x.sin(), lambda: x.cos())


# ---- rows ----------------------------------------------------------------------------------------


def test_s1_contexts_are_functions_loops_and_for_each_bodies():
    @ps.function
    def program(xs, n):
        total = ps.foldl(lambda acc, x: acc + x, xs, 0.0)
        return countdown(total, n) + each_squared(xs).sum()

    graph = program.graph(torch.ones(3), 2)
    kinds = sorted((context.kind, context.name) for context in graph.contexts)
    assert kinds == [
        ("each", "each_squared.each"),
        ("function", "countdown"),
        ("function", "each_squared"),
        ("function", "program"),
        ("loop", "program.loop"),
    ]
    recursive = countdown.graph(torch.ones(3), 2)
    assert [c.name for c in recursive.contexts] == ["countdown.main", "countdown"]
    for made in (graph, recursive):
        nodes = [node for context in made.contexts for node in context.nodes]
        assert all(n.operation.callee != 0 for n in nodes if isinstance(n.operation, Call))


def test_s2_a_call_starts_with_one_row_per_instance(watch: Watch):
    sine_or_cosine.map(torch.ones(4), [1, 0, 1, 0])
    first = watch.events[0]
    assert (first.what, first.rows) == ("create", [0, 1, 2, 3])
    assert first.detail["instance"].tolist() == [0, 1, 2, 3]


def test_s3_rows_know_their_instance_and_parent(watch: Watch):
    @ps.function
    def program(xs, n):
        return repeat(xs[0], n) + each_squared(xs)

    program.map([torch.ones(2), torch.ones(3)], [2, 1])
    made = [event for event in watch.events if event.what == "create"]
    level = {"program": 0, "repeat": 1, "each_squared": 1}
    made.sort(key=lambda event: level.get(event.name, 2))  # rows of calls are made first
    owner = {("program", row): row for row in made[0].rows}
    above = {"repeat": "program", "each_squared": "program"}
    above |= {"repeat.loop": "repeat", "each_squared.each": "each_squared"}
    for event in made[1:]:
        instances, parents = event.detail["instance"], event.detail["parent"]
        for row, instance, parent in zip(event.rows, instances, parents):
            assert owner[above[event.name], parent] == instance
            owner[event.name, row] = instance
    iterations = [e for e in made if e.name == "repeat.loop"]
    assert sum(len(event.rows) for event in iterations) == (2 + 1) + (1 + 1)


def test_s4_only_calls_go_deeper(watch: Watch):
    @ps.function
    def program(x, n):
        return repeat(countdown(x, n), n)

    program(torch.ones(()), 2)
    depths: dict[str, list[int]] = {}
    for event in watch.events:
        if event.what == "create":
            depths.setdefault(event.name, []).extend(event.detail["depth"])
    assert depths == {
        "program": [0],
        "countdown": [1, 2, 3],
        "repeat": [1],
        "repeat.loop": [1, 1, 1],
    }


def test_s5_iterations_and_elements_are_counted_from_zero(watch: Watch):
    repeat(torch.ones(()), 3)
    loops = [e for e in watch.events if e.what == "create" and e.name == "repeat.loop"]
    assert [count for event in loops for count in event.detail["count"]] == [0, 1, 2, 3]
    each_squared.map([torch.ones(2), torch.ones(3)])
    (each,) = (e for e in watch.events if e.what == "create" and e.name == "each_squared.each")
    assert each.detail["count"].tolist() == [0, 1, 0, 1, 2]


def test_s6_an_arm_is_entered_by_the_rows_that_its_switch_sends(watch: Watch):
    @ps.function
    def program(x, n):
        y = x * 2
        return ps.cond(n > 0, lambda: y.sin(), lambda: y.cos())

    program.map(torch.ones(4), [1, 0, 0, 1])
    rows = {e.detail.node.operation.name: e.rows for e in watch.fired("block")}
    assert rows == {"program:mul": [0, 1, 2, 3], "program:sin": [0, 3], "program:cos": [1, 2]}
    (switch,) = watch.nodes(Switch)
    arms = {n.operation.name: n.arm for n in watch.nodes(Block)}
    assert arms["program:mul"] == 0
    assert {arms["program:sin"], arms["program:cos"]} == set(switch.operation.arms)


def test_s7_an_arm_that_is_not_entered_costs_nothing(watch: Watch):
    @ps.function
    def program(x, n):
        return ps.cond(n > 0, lambda: repeat(x.exp(), n) + countdown(x, n), lambda: x)

    program.map(torch.ones(3), [0, 0, 0])
    assert watch.launches() == []
    assert {e.name for e in watch.events if e.what == "create"} == {"program"}
    assert not watch.fired("enter")


# ---- values --------------------------------------------------------------------------------------


def test_s8_a_wire_has_one_context_one_arm_and_one_home():
    weight = torch.ones(3)

    @ps.function
    def program(x, n):
        return ps.cond(n > 0, lambda: x * weight, lambda: x)

    graph = program.graph(torch.ones(3), 1)
    (block,) = (n for n in graph.contexts[0].nodes if isinstance(n.operation, Block))
    assert {wire.home for wire in block.inputs} == {Home.SLOT, Home.UNIFORM}
    (switch,) = (n for n in graph.contexts[0].nodes if isinstance(n.operation, Switch))
    assert switch.inputs[0].home is Home.HOST
    for context in graph.contexts:
        for node in context.nodes:
            made = {(wire.context, wire.arm) for wire in node.outputs}
            assert made <= {(context.index, node.arm)}


def test_s9_what_no_output_needs_is_not_in_the_graph():
    @ps.function
    def program(x, n):
        repeat(x.exp(), n)
        return x.sin()

    graph = program.graph(torch.ones(3), 1)
    names = [n.operation.name for n in graph.contexts[0].nodes if isinstance(n.operation, Block)]
    assert names == ["program:sin"]
    assert not any(isinstance(n.operation, Call) for c in graph.contexts for n in c.nodes)


def test_s10_uniform_values_are_computed_once_per_call(watch: Watch, monkeypatch):
    weight = torch.randn(3, 3)

    @ps.function
    def program(x, n):
        def body(i, x):
            return i + 1, x @ weight.softmax(0)

        return ps.while_loop(lambda i, x: i < n, body, (0, x))[1]

    made: list[object] = []
    original = engine.Run._compute_uniform
    monkeypatch.setattr(
        engine.Run, "_compute_uniform", lambda run, u: (made.append(u), original(run, u))[1]
    )
    program.map(torch.ones(2, 3), [3, 5])
    assert len(watch.launches()) == 5
    assert len(made) == len(watch.graph.uniforms) == 2  # the weight and its softmax
    made.clear()
    program.map(torch.ones(2, 3), [0, 0])
    assert made == []


def test_s11_a_uniform_operand_is_never_gathered(watch: Watch):
    weight = torch.ones(3)

    @ps.function
    def program(x):
        return x * weight

    program.map(torch.ones(5, 3))
    (launch,) = watch.launches()
    assert [type(operand).__name__ for operand in launch.operands] == ["Span", "Shared"]
    shared = next(operand for operand in launch.operands if isinstance(operand, Shared))
    assert watch.run.uniform(shared.wire) is weight


def test_s12_a_uniform_value_that_meets_rows_has_one_slot_for_all(watch: Watch):
    start = torch.zeros(3)

    @ps.function
    def program(x, n):
        return ps.cond(n > 0, lambda: x, lambda: start)

    program.map(torch.ones(4, 3), [0, 1, 0, 0])
    (found,) = (i for i in watch.graph.inputs if i.uniform is not None)
    number = watch.graph.inputs.index(found)
    assert len(set(watch.machine.input_slots[number].tolist())) == 1
    taken = watch.machine.result_slots[0].tolist()
    assert taken[0] == taken[2] == taken[3] != taken[1]


def test_s13_arguments_are_found_through_the_instance(watch: Watch):
    countdown.map(torch.ones(2, 3), [2, 4])
    inner = watch.graph.contexts[1]
    assert [wire.type.dtype for wire in inner.inputs] == ["int64"]  # n alone; x is always x
    argument = next(i for i in watch.graph.inputs if i.slot is not None)
    stored = [w for linked in watch.machine.linked.contexts for w in linked.slot_wires]
    assert argument.slot not in stored
    assert argument.slot.input is not None


def test_s14_a_value_that_is_only_copied_is_its_origin(watch: Watch):
    @ps.function
    def program(x, y, n):
        def body(i, x, y):
            return i + 1, x + y, y

        _, x, y = ps.while_loop(lambda i, x, y: i < n, body, (0, x, y))
        return x, y

    program(torch.ones(3), torch.ones(3), 2)
    loop = watch.context("loop")
    assert len(loop.inputs) == 2  # the counter and x


def test_s15_an_arena_holds_one_kind_whichever_wire(watch: Watch):
    @ps.function
    def program(x, n):
        return ps.cond(n > 0, lambda: x.sin(), lambda: x.cos()), n.double()

    program.map(torch.ones(4, 3), [1, 0, 1, 0])
    kinds = watch.run.schedule.arenas
    assert len(set(kinds)) == len(kinds) == 2
    targets = {launch.targets[0].arena for launch in watch.launches("in") + watch.launches("cos")}
    assert {kinds[number] for number in targets} == {("float32", (3,), "cpu")}


def test_s16_a_sequence_is_a_base_and_a_length(watch: Watch):
    each_squared.map([torch.ones(2, 4), torch.ones(5, 4)])
    argument = watch.graph.inputs[0].slot
    assert argument.type.is_sequence
    table = watch.machine.place(argument)
    numbers = watch.machine.input_slots[0]
    assert table.length[numbers].tolist() == [2, 5]
    assert table.base[numbers].tolist() == [0, 2]
    assert table.space.kind.shape == (4,)


def test_s17_other_dynamic_shapes_are_boxed(watch: Watch):
    @ps.function
    def outer(x):
        a = x.exp()
        return (a[:, None] * x[None, :]).sin()

    sizes = [2, 3, 2]
    results = outer.map([torch.ones(size) for size in sizes])
    assert [tuple(result.shape) for result in results] == [(2, 2), (3, 3), (2, 2)]
    (table,) = watch.machine.box_tables.values()
    boxes = watch.machine.result_slots[0]
    shapes = [watch.machine.spaces[arena].kind.shape for arena in table.arena[boxes]]
    assert shapes == [(2, 2), (3, 3), (2, 2)]
    assert len(set(table.arena[boxes].tolist())) == 2


def test_s18_what_steers_is_on_the_host_or_read_back(watch: Watch):
    @ps.function
    def program(xs, n):
        small = ps.cond(xs.sum() < 10, lambda: xs[n], lambda: xs[0])
        return ps.switch(n, [lambda: small, lambda: -small])

    program.map([torch.ones(2), torch.ones(20)], [1, 0])
    for switch in watch.nodes(Switch):
        assert switch.inputs[0].home is Home.HOST
    for element in watch.nodes(Primitive):
        assert element.inputs[1].home is Home.HOST
    (read,) = watch.nodes(Read)
    assert read.outputs[0].type.dtype == "bool"
    assert watch.launches("sum")


def test_s19_counters_stay_on_the_host_and_floats_are_in_both_places(watch: Watch):
    @ps.function
    def program(x, n, scale):
        def body(i, x, scale):
            return i + 1, x * scale + i, scale * 0.5

        return ps.while_loop(lambda i, x, scale: scale > 1, body, (0, x * n, scale))[1]

    program.map(torch.ones(2, 3), [1, 2], [4.0, 8.0])
    argument = watch.graph.inputs[1]
    assert argument.host is None  # only data reads n
    loop = watch.context("loop")
    homes = sorted((wire.type.dtype, str(wire.home)) for wire in loop.inputs if not wire.type.shape)
    assert homes == [("float32", "host"), ("float32", "slot"), ("int64", "host")]


# ---- when a node fires ---------------------------------------------------------------------------


def test_s20_wires_of_one_event_arrive_together(watch: Watch):
    @ps.function
    def program(x, n):
        a, b = ps.cond(n > 0, lambda: (x.sin(), x.cos()), lambda: (x, x + 1))
        return a, b

    program.map(torch.ones(4), [1, 0, 1, 0])
    (block,) = (n for n in watch.nodes(Block) if "sin" in n.operation.name)
    groups = [g for linked in watch.machine.linked.contexts for g in linked.groups]
    group = next(g for g in groups if block.outputs[0] in g.wires)
    assert set(group.wires) == set(block.outputs)
    assert len([e for e in watch.events if e.what == "deliver" and e.detail is group]) == 1


def test_s21_a_node_waits_for_what_is_not_certain(watch: Watch):
    @ps.function
    def program(x, n):
        early = x.sum() * 2
        return ps.cond(
            n > 0,
            lambda: early.sin().expand(3) + countdown(x, n) + early,
            lambda: ps.cond(early > 0, lambda: early.cos().expand(3), lambda: x),
        )

    program.map(torch.ones(2, 3), [1, 0])
    waits = {
        n.node.operation.name: n for n in watch.machine.linked.contexts[0].nodes if n.block >= 0
    }
    # inside an arm on `n` the value of `early` is not certain: its arrival and the arm
    assert waits["program:cos"].waits == 1  # the inner arm, entered only after `early`
    outer = next(n for name, n in waits.items() if "sin" in name)
    # both `early` and the call's result, which is a wire of the arm
    assert outer.waits == 2


def test_s22_nodes_with_one_trigger_fire_within_the_event(watch: Watch):
    @ps.function
    def program(x, n):
        m = n * 2 + 1
        return ps.cond(m > 4, lambda: x[m % 3].sin(), lambda: x[0].cos())

    program.map(torch.ones(4, 3), [1, 2, 3, 4])
    nodes = [n for linked in watch.machine.linked.contexts for n in linked.nodes]
    inline = {n.kind for n in nodes if n.is_inline}
    queued = {n.kind for n in nodes if not n.is_inline and n.kind != "call"}
    assert {"compute", "switch", "primitive"} <= inline
    assert queued == {"block"}
    repeat(torch.ones(()), 2)  # a loop's condition hangs on what iterations bring: queued
    loop = watch.machine.linked.contexts[1]
    condition = next(n for n in loop.nodes if n.kind == "compute" and n.node.arm == 0)
    assert not condition.is_inline
    assert next(n for n in loop.nodes if n.kind == "switch").is_inline


def test_s23_a_queued_node_fires_once_for_all_its_rows(watch: Watch):
    @ps.function
    def program(x, n):
        y = ps.switch(n, [lambda: x, lambda: x.sin(), lambda: x.cos()])
        return y.exp()

    program.map(torch.ones(6), [2, 0, 1, 0, 2, 1])
    (firing,) = (watch.events[k] for k in watch.block_firings("exp"))
    merged = [
        row
        for event in watch.events
        if event.what == "deliver"
        for row in event.rows
        if any(
            isinstance(n.operation, Merge) and event.detail.wires[0] in n.outputs
            for n in watch.graph.contexts[0].nodes
        )
    ]
    assert firing.rows == merged
    assert sorted(firing.rows) == [0, 1, 2, 3, 4, 5]


def test_s24_a_node_fires_once_for_each_row_of_its_arm(watch: Watch):
    trees = ps.data.random_binary_trees(10, vocabulary=5, seed=1)

    @ps.function
    def total(tree, i):
        def inner():
            return total(tree, tree.left(i)) + total(tree, tree.right(i))

        return ps.cond(tree.is_leaf(i), lambda: tree.token[i].float() * 2, inner)

    total.map(trees, [tree.root for tree in trees])
    leaves = sum(int(tree.is_leaf(i)) for tree in trees for i in range(len(tree)))
    assert sum(launch.rows for launch in watch.launches("mul")) == leaves
    assert sum(launch.rows for launch in watch.launches("add")) == leaves - len(trees)
    switches = [len(event.rows) for event in watch.fired("switch")]
    assert sum(switches) == sum(map(len, trees))
    assert not watch.nodes(Upload)
    assert watch.nodes(Compute)
