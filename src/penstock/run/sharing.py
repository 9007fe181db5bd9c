"""What a block's calls tell of its rows: whether those that read equal numbers may share a result,
whether that would save a product, and whether a row is seen by somebody as it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod

from penstock.ir.graph import Block
from penstock.ir.program import TorchCall
from penstock.ir.types import TensorType
from penstock.passes.rowwise import PRODUCTS
from penstock.run.batched import BlockInput

#: Types of whole numbers that `index_select` does not know.
_NOT_SELECTED = frozenset(["uint16", "uint32", "uint64"])


class Sharing:
    """What rows of one block may share."""

    def __init__(self, block: Block, inputs: Sequence[BlockInput], *, may_share: bool) -> None:
        self._block, self._inputs = block, inputs
        #: Whether a launch could be made for some of its rows only.
        self._may_share = may_share
        #: The names of the torch calls.
        self._called = [
            node.operation.name for node in block.nodes if isinstance(node.operation, TorchCall)
        ]

    @cached_property
    def whole_numbers(self) -> tuple[int, ...]:
        """The operands with rows, if all of them are one whole number a row, on the host; empty
        where they are not: rows that read the same numbers have the same results then.
        Operations that others have defined may do more than give results: one of ours prints. Of
        some types torch selects no rows.
        """
        rows = [k for k, spec in enumerate(self._inputs) if spec.kind == "row"]
        is_plain = self._may_share and self._block.device is None
        is_plain &= not any("torch.ops." in name for name in self._called)
        given = (value.type for value in self._block.results if isinstance(value.type, TensorType))
        is_plain &= all(kind.dtype not in _NOT_SELECTED for kind in given)
        return tuple(rows) if is_plain and all(map(self._is_whole_number, rows)) else ()

    def _is_whole_number(self, position: int) -> bool:
        spec = self._inputs[position]
        is_whole = not (spec.torch_dtype.is_floating_point or spec.torch_dtype.is_complex)
        is_whole &= spec.dtype not in _NOT_SELECTED
        return is_whole and spec.device == "cpu" and prod(spec.shape) == 1

    @cached_property
    def has_products(self) -> bool:
        """Whether it multiplies matrices: such a row costs more than handing out its results."""
        names = (name.rsplit(".", 1)[-1] for name in self._called)
        return any(name in PRODUCTS or name == "linear" for name in names)

    @cached_property
    def prints(self) -> bool:
        """Whether a row prints."""
        return "torch.ops.penstock.print.default" in self._called
