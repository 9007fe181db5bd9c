"""Made-up graphs and records for tests of summaries and explanations."""

from penstock.ir.graph import Block, Call, Context, Enter, Graph, Home, Node, Wire
from penstock.ir.program import Source
from penstock.ir.types import TensorType
from penstock.profiling.profile import Profile
from penstock.profiling.records import CallRecord, LaunchDetails, LaunchRecord

FLOATS = TensorType("float32", (4,))


def context(index, kind, name, nodes, parent=None):
    return Context(index, kind, name, parent, (None,), tuple(nodes), (), ())


def block(name, *, context=0, arm=0, types=(FLOATS,), is_flat=False, sizes=None):
    inputs = tuple(Wire(k, kind, Home.SLOT, context, arm) for k, kind in enumerate(types))
    operation = Block(name, (), (), (), is_flat, sizes or {})
    return Node(operation, inputs, (), context, arm, Source("train.py", 7, "step"))


def call(graph, *, instances=8, **changes):
    return CallRecord(graph.contexts[0].name, instances, graph, **changes)


def launch(record, node, rows, *, size=4, seconds=0.25, beginning=0.0, **details):
    details.setdefault("sources", ("gather" if details.get("gathered_bytes") else "view",))
    told = LaunchDetails(((rows, size),), **details)
    return LaunchRecord(record, node, rows, "cpu", float(seconds), beginning, details=told)


def profile(calls, events, **changes):
    return Profile(list(calls), list(events), **changes)


def straight_graph(*nodes):
    return Graph((context(0, "function", "score", nodes),), (), ())


def loop_graph(node):
    enter = Node(Enter(1, 0), (), (), 0, 0)
    outer = context(0, "function", "decode", [enter])
    return Graph((outer, context(1, "loop", "decode.loop", [node], parent=0)), (), ())


def recursive_graph(node):
    again = Node(Call(0, 0), (), (), 0, 0)
    return Graph((context(0, "function", "encode", [node, again]),), (), ())
