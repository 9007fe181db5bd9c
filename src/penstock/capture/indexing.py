"""Reads by index: which are slot reads of the machine, and which stay torch calls.

A whole-number index into the dynamic leading dimension of a tensor is a slot read. So is one that
the host can compute into a static leading dimension, which is then stored as a sequence. All other
indexing is data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from penstock.capture.constants import constant_tensor
from penstock.capture.recording import record
from penstock.capture.source import user_source
from penstock.capture.traced_tensor import Facts, TracedDimension, TracedTensor
from penstock.capture.type_rules import is_control_type
from penstock.ir.program import AsSequence, Element, Node
from penstock.ir.types import TensorType

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


def read_item(
    tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`tensor[index]`."""
    tensor = tracer.tensor(args[0])
    items = plain_index(tracer, args[1])
    sequence = _sequence_to_read(tracer, tensor, items[0]) if items else None
    if sequence is None:
        index = items if isinstance(args[1], tuple) else items[0]
        return record(tracer, torch.Tensor.__getitem__, (tensor, index), {})
    element = read_element(tracer, sequence, items[0], _is_known(tensor))
    rest = items[1:]
    if all(item is Ellipsis for item in rest):
        return element
    return read_item(tracer, function, (element, rest), {})


def read_element(
    tracer: Tracer, sequence: TracedTensor, index: Any, is_known: bool = False
) -> TracedTensor:
    """The element of a sequence at a traced or plain index."""
    position = tracer.tensor(index)
    type_ = sequence.traced.value.type
    assert isinstance(type_, TensorType)
    value = tracer.emit(Element(), (sequence, position), (type_.element,))[0]
    is_control = is_known and position.traced.is_control and is_control_type(type_.element)
    return tracer.wrap(value, is_control=is_control)


def stored_as_sequence(tracer: Tracer, tensor: TracedTensor) -> TracedTensor:
    """A tensor of static length as a sequence; made once, where the tensor is defined."""
    facts = tensor.traced
    if facts.sequence is None:
        type_ = facts.value.type
        assert isinstance(type_, TensorType)
        shape = (tracer.worlds.fresh_symbol(), *type_.shape[1:])
        value = tracer.new_value(TensorType(type_.dtype, shape, type_.device))
        facts.scope.nodes.append(Node(AsSequence(), (facts.value,), (value,), user_source()))
        made = Facts(value, tracer.worlds.fakes(value.type), facts.scope)  # type: ignore[arg-type]
        made.origins = (frozenset(),) * len(shape)
        facts.sequence = TracedTensor(made)
    return facts.sequence


def plain_index(tracer: Tracer, index: Any) -> tuple[Any, ...]:
    """The items of an index, with lists as tensors."""
    items = index if isinstance(index, tuple) else (index,)
    return tuple(_as_tensor(tracer, item) if isinstance(item, list) else item for item in items)


def _as_tensor(tracer: Tracer, items: list[Any]) -> TracedTensor:
    if any(isinstance(item, torch.Tensor) for item in items):
        stacked: TracedTensor = record(
            tracer, torch.stack, ([tracer.tensor(item) for item in items],), {}
        )
        return stacked
    with torch._C.DisableTorchFunction():
        made = torch.tensor(items)
    return constant_tensor(tracer, made)


def _sequence_to_read(tracer: Tracer, tensor: TracedTensor, index: Any) -> TracedTensor | None:
    """The sequence from which `tensor[index]` is a slot read; None where it is data."""
    facts = tensor.traced
    type_ = facts.value.type
    assert isinstance(type_, TensorType)
    if facts.is_uniform or not type_.shape:
        return None
    if isinstance(index, TracedDimension):
        tracer.dimensions.require_dynamic(index.origins if type_.is_sequence else frozenset())
    if type_.is_sequence:
        return tensor if _is_whole(index) or type(index) in (int, TracedDimension) else None
    if type_.is_dynamic or not (_is_whole(index) and index.traced.is_control):
        return None
    if facts.is_input:
        tracer.dimensions.require_dynamic(facts.origins[0])
    return stored_as_sequence(tracer, tensor)


def _is_whole(index: Any) -> bool:
    """Whether `index` is one traced whole number."""
    if not isinstance(index, TracedTensor):
        return False
    type_ = index.traced.value.type
    assert isinstance(type_, TensorType)
    return is_control_type(type_) and type_.dtype != "bool"


def _is_known(tensor: TracedTensor) -> bool:
    """Whether the contents are on the host before anything runs."""
    return tensor.traced.is_control


INDEXING_RULES = {"torch.Tensor.__getitem__": read_item}
