"""One torch call becomes one node, with the types of its results found with fake tensors.

The call is tried in two worlds that differ in all dynamic sizes: what differs in the results is
dynamic, too. On several devices, numbers on the host follow the tensors that they meet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from penstock.calls.own_functions import follow
from penstock.calls.structure import flatten, unflatten
from penstock.calls.torch_names import name_of
from penstock.capture.own_gradients import refuse_custom_function
from penstock.capture.refusals import data_dependent_shape, refuse_frequencies, value_needed
from penstock.capture.size_cuts import refuse_fixed_cut
from penstock.capture.size_rules import control_facts, result_origins
from penstock.capture.templates import Template
from penstock.capture.traced_tensor import TracedTensor
from penstock.capture.worlds import Fakes
from penstock.ir.program import TorchCall
from penstock.ir.types import TensorType

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


def record(tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    """Add the call to the program and return what user code gets for it."""
    return record_named(tracer, name_of(function), function, args, kwargs)


def record_named(
    tracer: Tracer, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
) -> Any:
    """`record` for a function that the program calls by `name`."""
    if name not in _MOVES:
        args, kwargs = follow_device(tracer, args, kwargs)
    template = Template(tracer, name, args, kwargs)
    refuse_fixed_cut(name, template)
    refuse_frequencies(name, args, kwargs)
    first, second = _tried(tracer, name, function, template)
    leaves, structure = flatten(first)
    others, _ = flatten(second)
    if len(leaves) != len(others):
        raise value_needed("__iter__", template.operands[0])
    pairs = list(zip(leaves, others, strict=True))
    numbers = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if not numbers:
        return _same_result(name, first, second)
    fakes = [template.result(name, pairs[i]) for i in numbers]
    outputs = _emit(tracer, template, template.call(name), fakes)
    for number, output in zip(numbers, outputs, strict=True):
        leaves[number] = output
    return unflatten(structure, leaves)


def _tried(
    tracer: Tracer, name: str, function: Callable[..., Any], template: Template
) -> tuple[Any, Any]:
    """What the call gives in both worlds; in those of expected sizes where the others clash."""

    def run(world: int) -> Any:
        return _run(tracer, name, function, template, world)

    try:
        first = run(0)
        found = first, run(1) if template.is_dynamic else first
    except RuntimeError:
        if template.is_dynamic and tracer.worlds.has_cuts:
            # the size of a slice may be that of an input, once that is dynamic too
            tracer.dimensions.require_dynamic(template.origins)
        if not template.has_expected:
            raise
        expected = run(2), run(3)
        if not template.can_expect(expected):
            raise
        return expected
    if not template.has_expected:
        return found
    try:
        expected = run(2), run(3)
    except RuntimeError:
        return found
    _note_expected(tracer, found, expected)
    return found


def _note_expected(tracer: Tracer, found: Any, expected: Any) -> None:
    """Note the expected sizes of results, dimension by dimension."""
    worlds = [flatten(result)[0] for result in (*found, *expected)]
    for leaves in zip(*worlds):
        if isinstance(leaves[0], torch.Tensor):
            for sizes in zip(*(leaf.shape for leaf in leaves)):
                tracer.worlds.expect((sizes[0], sizes[1]), (sizes[2], sizes[3]))


#: Calls that say themselves where their result goes.
_MOVES = ("torch.Tensor.to", "torch.Tensor.cpu", "torch.Tensor.cuda", "penstock.follow")


def follow_device(tracer: Tracer, args: tuple[Any, ...], kwargs: Any) -> tuple[Any, Any]:
    """The arguments, with whole numbers and 0-d tensors on the host moved to what they meet.

    Structure stays on the host; what of it is data (tokens, keys) follows its consumers.
    """
    leaves, structure = flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    away = next((tensor for tensor in tensors if _device_of(tensor).type != "cpu"), None)
    if away is None or all(_device_of(tensor).type != "cpu" for tensor in tensors):
        return args, kwargs
    moved = [
        _moved(tracer, leaf, away) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
    ]
    found: tuple[Any, Any] = unflatten(structure, moved)
    return found


def _device_of(tensor: torch.Tensor) -> torch.device:
    return tensor.traced.fakes[0].device if isinstance(tensor, TracedTensor) else tensor.device


def _moved(tracer: Tracer, tensor: torch.Tensor, like: torch.Tensor) -> Any:
    traced = tracer.tensor(tensor)
    fake = traced.traced.fakes[0]
    is_whole = not (fake.dtype.is_floating_point or fake.dtype.is_complex)
    if fake.device.type != "cpu" or not (is_whole or fake.dim() == 0):
        return tensor
    return record_named(tracer, "penstock.follow", follow, (traced, like), {})


def record_as(
    tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...], type_: TensorType
) -> TracedTensor:
    """Record a call whose one result is known to have the type `type_`."""
    name = name_of(function)
    template = Template(tracer, name, args, {})
    return _emit(tracer, template, template.call(name), [tracer.worlds.fakes(type_)])[0]


def _emit(
    tracer: Tracer, template: Template, operation: TorchCall, fakes: list[Fakes]
) -> list[TracedTensor]:
    fakes = [_settled(pair) for pair in fakes]
    types = [tracer.worlds.type_of(pair) for pair in fakes]
    values = tracer.emit(operation, template.operands, types)
    facts = [operand.traced for operand in template.operands]
    common = control_facts(operation, facts, types)
    common["is_uniform"] = all(fact.is_uniform for fact in facts)
    outputs = []
    for value, pair, type_ in zip(values, fakes, types, strict=True):
        origins = result_origins(type_, facts)
        outputs.append(tracer.wrap(value, pair, origins=origins, **common))
    return outputs if torch.is_grad_enabled() else [_detached(tracer, item) for item in outputs]


def _detached(tracer: Tracer, output: TracedTensor) -> TracedTensor:
    """What a call gives inside `torch.no_grad()`."""
    refuse_custom_function()
    if not output.traced.fakes[0].dtype.is_floating_point:
        return output
    with torch.enable_grad():
        detached: TracedTensor = record(tracer, torch.Tensor.detach, (output,), {})
    return detached


def _run(
    tracer: Tracer, name: str, function: Callable[..., Any], template: Template, world: int
) -> Any:
    try:
        with torch._C.DisableTorchFunction(), torch.no_grad(), tracer.worlds.mode:
            args, kwargs = template.arguments(world)
            return function(*args, **kwargs)
    except (DataDependentOutputException, DynamicOutputShapeException):
        raise data_dependent_shape(name) from None


def _settled(pair: Fakes) -> Fakes:
    """The pair as one tensor twice where the worlds agree."""
    first, second = pair
    return (first, first) if first.shape == second.shape else pair


def _same_result(name: str, first: Any, second: Any) -> Any:
    if first != second:
        raise data_dependent_shape(name)
    return first
