"""What the outputs of a unit's block are: their types, what memory they share in eager code, and
from which inputs gradients flow to them.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from penstock.calls.autocast import Autocast
from penstock.capture.lazy.units import Output
from penstock.capture.worlds import dtype_called
from penstock.ir.graph import Block, Node
from penstock.ir.program import TorchCall, Value
from penstock.ir.types import TensorType
from penstock.run.batched.functorch_adapter import TRACING, quiet_fakes
from penstock.run.blocks import RunnableBlock

#: Calls through which no gradient flows.
_CUTTING = frozenset(["torch.Tensor.detach", "torch.detach"])


def find_outputs(node: Node, autocast: Autocast) -> tuple[Output, ...]:
    """The outputs of a block's node, found by running it on tensors without contents."""
    assert isinstance(node.operation, Block)
    with (
        TRACING,
        quiet_fakes(),
        torch._C.DisableTorchFunction(),
        FakeTensorMode(),
        torch.no_grad(),
    ):
        arguments = [_empty(wire.type) for wire in node.inputs]  # type: ignore[arg-type]
        made = RunnableBlock(node, autocast).function(*arguments)
    flows = _flows(node.operation)
    memory = [_memory(tensor) for tensor in arguments]
    outputs: list[Output] = []
    for number, (tensor, value) in enumerate(zip(made, node.operation.results, strict=True)):
        place = _memory(tensor)
        earlier = [_memory(other) for other in made[:number]]
        outputs.append(
            Output(
                tensor.dtype,
                tuple(tensor.shape),
                tuple(tensor.stride()),
                tensor.device,
                flows[value],
                memory.index(place) if place in memory else None,
                earlier.index(place) if place in earlier else None,
            )
        )
    return tuple(outputs)


def _empty(type_: TensorType) -> torch.Tensor:
    shape: tuple[int, ...] = type_.shape  # type: ignore[assignment]
    return torch.empty(shape, dtype=dtype_called(type_.dtype), device=type_.device)


def _memory(tensor: torch.Tensor) -> int:
    memory: int = tensor.untyped_storage()._cdata
    return memory


def _flows(block: Block) -> dict[Value, frozenset[int]]:
    """For each value of the block, the inputs from which gradients flow to it."""
    flows: dict[Value, frozenset[int]] = {
        value: frozenset([number]) if _is_floating(value) else frozenset()
        for number, value in enumerate(block.parameters)
    }
    for node in block.nodes:
        call = node.operation
        is_cut = isinstance(call, TorchCall) and call.name in _CUTTING
        reached = frozenset[int]().union(*(flows[value] for value in node.inputs))
        for value in node.outputs:
            flows[value] = frozenset() if is_cut or not _is_floating(value) else reached
    return flows


def _is_floating(value: Value) -> bool:
    dtype = dtype_called(value.type.dtype)  # type: ignore[union-attr]
    return dtype.is_floating_point or dtype.is_complex
