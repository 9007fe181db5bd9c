"""A unit: a call that is recorded as one step, or the reason why it is not.

A unit says everything that recording needs: the block to launch, the tensors it reads by reference,
how many random draws it makes, and how to put together what user code gets back. It holds no
argument and no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from penstock.calls.autocast import Autocast
from penstock.calls.structure import Structure, flatten, unflatten
from penstock.capture.captures import Capture
from penstock.capture.lazy.guarded_values import tensor_fact
from penstock.capture.leaf_types import StaticLeaf
from penstock.capture.trace import InputLeaf
from penstock.ir.graph import Node
from penstock.ir.program import Program
from penstock.passes.unit_block import Given, Kept, Made, Place, UnitBlock


class Signature(NamedTuple):
    """The arguments of a call: what differs from call to call, and what is part of the unit."""

    #: The structure of (args, kwargs).
    structure: Structure
    #: `InputLeaf` for tensors; everything else as it is.
    leaves: tuple[Any, ...]


def describe_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """The signature of a call with these arguments; their contents are not looked at."""
    leaves, structure = flatten((args, kwargs))
    return Signature(structure, tuple(map(_described, leaves)))


def _described(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    with torch._C.DisableTorchFunction():
        return InputLeaf(leaf.dtype, tuple(leaf.shape), str(leaf.device))


class Output(NamedTuple):
    """What one output of a unit's node is."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: torch.device
    #: Inputs of the node from which gradients flow to it.
    flows_from: frozenset[int]
    #: The input of the node whose memory it shares in eager code, if any.
    view_of: int | None = None
    #: An earlier output whose memory it shares in eager code, if any.
    shares_with: int | None = None


@dataclass(slots=True, eq=False, repr=False)
class Unit:
    """A call as one step."""

    name: str
    block: UnitBlock
    #: What the block's uniform tensors are, and the tensors themselves as they are now.
    captures: tuple[Capture, ...]
    tensors: tuple[torch.Tensor, ...]
    #: What the outputs of the block's node are.
    outputs: tuple[Output, ...]
    #: What user code gets: a place for each tensor, and static leaves.
    structure: Structure
    leaves: tuple[Place | StaticLeaf, ...]
    #: The program that was traced; its torch calls in order tell what was recorded.
    program: Program
    #: The state of autocast that the block runs in.
    autocast: Autocast
    #: Torch's default device when it was traced, if it makes tensors from numbers; else None.
    default_device: torch.device | None = None
    #: The count of changes at which `tensors` were looked up.
    fetched: int = 0
    #: What the recorder keeps for this unit.
    recorded: Any = None

    def __repr__(self) -> str:
        return f"<unit {self.name}>"

    @property
    def node(self) -> Node | None:
        """The node with the block; None where nothing is computed."""
        return self.block.node

    @property
    def draws(self) -> int:
        """How many random draws one call makes."""
        return self.block.draws

    @property
    def has_single_output(self) -> bool:
        """Whether user code gets one tensor that the block makes, and nothing else."""
        return self.structure.is_leaf() and self.leaves == (Made(0),)

    def rebuild(self, made: Sequence[Any], arguments: Sequence[Any]) -> Any:
        """What user code gets, from the node's outputs and the tensor arguments of the call."""
        leaves = [self._leaf(leaf, made, arguments) for leaf in self.leaves]
        return unflatten(self.structure, leaves)

    def _leaf(self, leaf: Place | StaticLeaf, made: Sequence[Any], arguments: Sequence[Any]) -> Any:
        match leaf:
            case Made(output=number):
                return made[number]
            case Given(parameter=number):
                return arguments[number]
            case Kept(uniform=number):
                return self.tensors[number]
            case StaticLeaf(value=value):
                return value

    def current_tensors(self) -> tuple[torch.Tensor, ...] | None:
        """The captured tensors as they are now; None where one has another type than before."""
        now = tuple(capture.fetch() for capture in self.captures)
        is_fitting = all(
            isinstance(tensor, torch.Tensor) and tensor_fact(tensor) == tensor_fact(capture.tensor)
            for tensor, capture in zip(now, self.captures, strict=True)
        )
        return now if is_fitting else None


@dataclass(slots=True, eq=False)
class Refusal:
    """Why a call is not a unit."""

    name: str
    #: In words, such as "writes self.count at model.py:12".
    reason: str
    default_device: None = None
    fetched: int = 0
