"""`scan`, `foldl`, `foldr` and `map_fn` in a trace.

Scans and folds are loops with a counter that read one element per iteration. A map is a `ForEach`:
all elements at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from penstock.calls.structure import flatten, leaf_paths, unflatten
from penstock.capture.branches import is_traced
from penstock.capture.elements import Elements
from penstock.capture.leaf_types import leaf_type
from penstock.capture.leaves import as_values
from penstock.capture.location import user_line
from penstock.capture.loops import LoopTrace, State, parameter_names
from penstock.capture.recording import record
from penstock.capture.refusals import describe
from penstock.capture.traced_array import TracedTensorArray
from penstock.capture.traced_tensor import TracedTensor
from penstock.capture.type_rules import is_control_type
from penstock.capture.worlds import SizePair
from penstock.errors import LoopTypeError, StructureError, report
from penstock.ir.program import ForEach
from penstock.ir.types import ArrayType, TensorType

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


def trace_scan(tracer: Tracer, combine_fn: Any, init: Any, xs: Any, reverse: bool) -> Any:
    """`ps.scan`."""
    elements = Elements(tracer, xs, "scan")
    state = State(init, "scan", "combine_fn", False, parameter_names(combine_fn, 1))
    example, structure = _example_result(tracer, combine_fn, state, elements)
    count = len(state.leaves)
    length = elements.length()

    def body(leaves: Sequence[Any]) -> list[Any]:
        counter, arrays = leaves[0], leaves[1 + count :]
        position = _from_end(tracer, length, counter) if reverse else counter
        x = elements.at(position)
        carry, y = as_pair(combine_fn(state.value(leaves[1 : 1 + count]), x))
        results, found = flatten(as_values(y, "scan: what combine_fn returns", "y"))
        if found != structure:
            raise _changed_results(example, y)
        written = [
            array.write(position, value) if isinstance(array, TracedTensorArray) else value
            for array, value in zip(arrays, results, strict=True)
        ]
        advanced = record(tracer, torch.Tensor.add, (counter, 1), {})
        return [advanced, *state.returned_leaves(carry), *written]

    initial = [tracer.tensor(0), *state.leaves, *_arrays(tracer, example, length)]
    loop = LoopTrace(tracer, _shifted(state), _counts_to(tracer, length), body)
    final = loop.trace(initial)
    arrays = [_with_length(array, elements.pair) for array in final[1 + count :]]
    ys = [array.stack() if isinstance(array, TracedTensorArray) else array for array in arrays]
    return state.value(final[1 : 1 + count]), unflatten(structure, ys)


def trace_fold(tracer: Tracer, fn: Any, xs: Any, init: Any, what: str) -> Any:
    """`ps.foldl` and `ps.foldr`."""
    elements = Elements(tracer, xs, what)
    state = State(init, what, "fn", False, parameter_names(fn, 1))
    length = elements.length()

    def body(leaves: Sequence[Any]) -> list[Any]:
        counter = leaves[0]
        position = _from_end(tracer, length, counter) if what == "foldr" else counter
        returned = fn(state.value(leaves[1:]), elements.at(position))
        advanced = record(tracer, torch.Tensor.add, (counter, 1), {})
        return [advanced, *state.returned_leaves(returned)]

    initial = [tracer.tensor(0), *state.leaves]
    loop = LoopTrace(tracer, _shifted(state), _counts_to(tracer, length), body)
    return state.value(loop.trace(initial)[1:])


def trace_map(tracer: Tracer, fn: Any, xs: Any) -> Any:
    """`ps.map_fn`."""
    elements = Elements(tracer, xs, "map_fn")
    if not elements.can_fork:
        return trace_scan(tracer, lambda carry, x: (carry, fn(x)), (), xs, False)[1]
    symbols_before = set(tracer.worlds.sizes)
    with tracer.nested_scope() as scope:
        inputs = [
            tracer.body_input(
                leaf.traced.value.type.element, is_control=_is_control(leaf, original)
            )
            for leaf, original in zip(elements.leaves, elements._originals, strict=True)
        ]
        returned = fn(unflatten(elements.structure, inputs))
        returned = as_values(returned, "map_fn: what fn returns", "result")
        leaves, structure = flatten(returned)
        leaves = [tracer.leaf(leaf) for leaf in leaves]
        types = [leaf_type(leaf) for leaf in leaves if is_traced(leaf)]
        body = scope.body([tracer.read(leaf) for leaf in leaves if is_traced(leaf)])
    arrays = [ArrayType(leaf.type) for leaf in types]  # type: ignore[union-attr, arg-type]
    outputs = iter(tracer.emit(ForEach(body), elements.leaves, arrays))
    known = tracer.worlds.settled(symbols_before, body.inputs[0].number)
    results = [
        _stacked(TracedTensorArray(tracer, next(outputs), tracer.scope, elements.pair), known)
        if is_traced(leaf)
        else leaf
        for leaf in leaves
    ]
    return unflatten(structure, results)


def _is_control(leaf: TracedTensor, original: Any) -> bool:
    type_ = leaf.traced.value.type
    assert isinstance(type_, TensorType)
    return is_control_type(type_.element) and original.traced.is_control


def _stacked(array: TracedTensorArray, known_symbols: set[str]) -> Any:
    """The stack of an array's elements; the array itself where their shapes may differ."""
    element = array.type.element
    assert element is not None
    inner = {size for size in element.shape if isinstance(size, str)} - known_symbols
    return array if inner else array.stack()


def _example_result(
    tracer: Tracer, combine_fn: Any, state: State, elements: Elements
) -> tuple[list[Any], Any]:
    """What one step returns besides the carry: traced once to learn its structure."""
    with tracer.nested_scope():
        carry = [tracer.leaf(leaf) for leaf in state.leaves]
        _, y = as_pair(combine_fn(state.value(carry), elements.at(tracer.tensor(0))))
        leaves, structure = flatten(as_values(y, "scan: what combine_fn returns", "y"))
        return [tracer.leaf(leaf) for leaf in leaves], structure


def _arrays(tracer: Tracer, example: Sequence[Any], length: TracedTensor) -> list[Any]:
    return [tracer.tensor_array(length) if is_traced(leaf) else leaf for leaf in example]


def _with_length(array: Any, pair: SizePair | None) -> Any:
    if isinstance(array, TracedTensorArray):
        array.length = pair
    return array


def _counts_to(tracer: Tracer, length: TracedTensor) -> Callable[[Sequence[Any]], Any]:
    return lambda leaves: record(tracer, torch.Tensor.lt, (leaves[0], length), {})


def _from_end(tracer: Tracer, length: TracedTensor, counter: Any) -> TracedTensor:
    last = record(tracer, torch.Tensor.sub, (length, 1), {})
    position: TracedTensor = record(tracer, torch.Tensor.sub, (last, counter), {})
    return position


def _shifted(state: State) -> State:
    """The state with the loop's counter in front and results behind, for error texts only."""
    shifted = State(state.initial, state.loop, state.function, False, state.names)
    paths = ["the counter", *leaf_paths(state.initial, state.names[0])]
    shifted._paths = lambda: [*paths, *["result"] * 64]  # type: ignore[method-assign]
    return shifted


def as_pair(returned: Any) -> tuple[Any, Any]:
    """The next carry and the result, which `combine_fn` of a scan returns."""
    if type(returned) in (tuple, list) and len(returned) == 2:
        return returned[0], returned[1]
    raise LoopTypeError(
        report(
            "scan: combine_fn must return a pair.",
            where=user_line(),
            facts=[
                ("expected", "(next carry, result of this element)"),
                ("returned value", describe(returned)),
            ],
            todo="Return (carry, y) from combine_fn; y may be an empty tuple.",
        )
    )


def _changed_results(example: Any, y: Any) -> StructureError:
    return StructureError(
        report(
            "scan: the function must return the same types for every element.",
            where=user_line(),
            facts=[("first", describe(example)), ("later", describe(y))],
            todo="Make combine_fn return one structure for every element.",
        )
    )
