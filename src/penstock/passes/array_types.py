"""Finds the element types of arrays that were made before anything was known of their elements.

Arrays that control flow copies into each other, and the versions before and after a write, have one
element type.
"""

from __future__ import annotations

from penstock.ir.program import ArrayWrite, Value
from penstock.ir.types import ArrayType
from penstock.passes.flow import Flow


def resolve_array_types(flow: Flow) -> dict[Value, ArrayType]:
    """The full type of every array; the element type stays None where nothing is ever written."""
    arrays = {v: v.type for v in flow.definitions if isinstance(v.type, ArrayType)}
    parents = {value: value for value in arrays}

    def find(value: Value) -> Value:
        while parents[value] is not value:
            value = parents[value]
        return value

    for target, sources in flow.sources.items():
        for source in sources if target in parents else ():
            parents[find(source)] = find(target)
    for definition in flow.definitions.values():
        node = definition.node
        if node is not None and isinstance(node.operation, ArrayWrite):
            parents[find(node.inputs[0])] = find(node.outputs[0])
    known = {find(value): kind for value, kind in arrays.items() if kind.element is not None}
    return {value: known.get(find(value), kind) for value, kind in arrays.items()}
