"""Tensors made from Python numbers alone: constants of the program.

They are made for real, once. A single number becomes a `Constant`, which the host can compute with;
anything larger is captured like any other tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.capture.captures import Capture
from penstock.capture.source import user_source
from penstock.capture.traced_tensor import Facts, TracedTensor
from penstock.ir.program import Captured, Constant, Node

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


def constant_tensor(tracer: Tracer, tensor: torch.Tensor) -> TracedTensor:
    """A tensor with known contents as a value of the program."""
    with torch._C.DisableTorchFunction():
        return _constant_tensor(tracer, tensor)


def _constant_tensor(tracer: Tracer, tensor: torch.Tensor) -> TracedTensor:
    fakes = tracer.worlds.fakes_like(tensor)
    value = tracer.new_value(tracer.worlds.type_of(fakes))
    number = None if tensor.dim() or tensor.dtype.is_complex else tensor.item()
    operation: Any
    if number is None:
        tracer.captures.append(Capture(f"constant{len(tracer.captures)}", tensor))
        operation = Captured(len(tracer.captures) - 1)
    else:
        operation = Constant(number)
    tracer.scope.nodes.append(Node(operation, (), (value,), user_source()))
    is_whole = isinstance(number, int)
    facts = Facts(
        value,
        fakes,
        tracer.scope,
        is_control=is_whole,
        is_uniform=True,
        number=number,
        contents=tensor,
        hint=(int(number), int(number)) if is_whole and number is not None else None,
        origins=(frozenset(),) * tensor.dim(),
    )
    return TracedTensor(facts)
