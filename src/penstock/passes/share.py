"""Shares common subexpressions: a computation that an enclosing body has already made is not made
again.

Only operations without effect and without chance are shared: torch calls, elements, sizes,
constants. A random call is never equal to another, because its key is not.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.ir.program import (
    AsSequence,
    Body,
    Captured,
    Constant,
    Element,
    Function,
    Program,
    Size,
    TorchCall,
    Value,
)

_PURE = (TorchCall, Element, Size, Constant, Captured, AsSequence)


def share_computations(program: Program) -> Program:
    """The program with every common subexpression computed once in its scope."""
    functions = tuple(
        Function(function.name, _share_body(function.body, {}, {}), function.source)
        for function in program.functions
    )
    return replace(program, functions=functions)


Known = dict[tuple[str, tuple[int, ...]], tuple[Value, ...]]
Renamed = dict[Value, Value]


def _share_body(body: Body, known: Known, renamed: Renamed) -> Body:
    known, renamed = dict(known), dict(renamed)
    nodes = []
    for node in body.nodes:
        inputs = tuple(renamed.get(value, value) for value in node.inputs)
        if isinstance(node.operation, _PURE):
            # The text tells 1 from True and 1.0, which compare equal.
            key = (repr((node.operation, node.device)), tuple(map(id, inputs)))
            if key in known and _same_types(known[key], node.outputs):
                renamed.update(zip(node.outputs, known[key]))
                continue
            known[key] = node.outputs
        bodies = (_share_body(inner, known, renamed) for inner in node.bodies)
        nodes.append(replace(node.with_bodies(bodies), inputs=inputs))
    outputs = tuple(renamed.get(value, value) for value in body.outputs)
    return Body(body.inputs, tuple(nodes), outputs)


def _same_types(first: tuple[Value, ...], second: tuple[Value, ...]) -> bool:
    return [value.type for value in first] == [value.type for value in second]
