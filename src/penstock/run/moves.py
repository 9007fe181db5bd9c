"""Which parameters of a block its nodes only move to a device, and where they go."""

from __future__ import annotations

from penstock.ir.graph import Block
from penstock.ir.program import Node, TorchCall, Value
from penstock.ir.types import TensorType

#: Calls that move their first operand to a device.
_MOVES = ("torch.Tensor.to", "torch.Tensor.cuda", "penstock.follow")


def moved(block: Block) -> frozenset[int]:
    """Parameters with which nothing is done but to move them, by position."""
    return frozenset(
        position
        for position, parameter in enumerate(block.parameters)
        if parameter not in block.results
        and all(_is_move(node, parameter) for node in _readers(block, parameter))
    )


def taken_on(block: Block, position: int, kind: TensorType) -> str:
    """Where the block takes a parameter: whole numbers that it only moves to another device are
    taken there, so that those of all launches travel together.
    """
    parameter = block.parameters[position]
    readers = _readers(block, parameter)
    if "int" not in kind.dtype or parameter in block.results or not readers:
        return kind.device
    devices = {_destination(node, parameter) for node in readers}
    return devices.pop() or kind.device if len(devices) == 1 else kind.device


def _readers(block: Block, value: Value) -> list[Node]:
    return [node for node in block.nodes if value in node.inputs]


def _is_move(node: Node, value: Value) -> bool:
    """Whether a node that reads a value moves it, and does nothing else."""
    operation = node.operation
    is_move = isinstance(operation, TorchCall) and operation.name in _MOVES
    return is_move and node.inputs[0] is value and value not in node.inputs[1:]


def _destination(node: Node, value: Value) -> str | None:
    """The device that a value follows others to in a node, if that does nothing else with it."""
    operation, kind = node.operation, node.outputs[0].type
    is_following = isinstance(operation, TorchCall) and operation.name == "penstock.follow"
    if not is_following or not _is_move(node, value):
        return None
    return kind.device if isinstance(kind, TensorType) else None
