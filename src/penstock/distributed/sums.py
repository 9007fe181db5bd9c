"""Sums of gradients that several ranks have parts of.

The lowest rank of those that want a gradient adds the parts up, in the order of ranks, and sends
the sum back: so all have the same bits. A part may be missing; where all are, there is no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from penstock.distributed.messages import aligned
from penstock.distributed.transport import Transport
from penstock.distributed.turns import Rows

Gradients = list[torch.Tensor | None]

_HOST = torch.device("cpu")


def sum_gradients(
    transport: Transport,
    tensors: Sequence[torch.Tensor],
    parts: Sequence[torch.Tensor | None],
    users: Sequence[int],
) -> Gradients:
    """The gradients of tensors, given for each this rank's part and the ranks that want the sum, as
    bits; ranks that do not want one get none.
    """
    found = list(parts)
    for ranks in sorted(set(users)):
        chosen = [k for k, wanted in enumerate(users) if wanted == ranks]
        if ranks.bit_count() > 1:
            layout = _Layout([tensors[k] for k in chosen])
            summed = _sum(transport, layout, [parts[k] for k in chosen], ranks)
        else:
            summed = [parts[k] for k in chosen]
        is_wanted = bool(ranks >> transport.rank & 1)
        for k, total in zip(chosen, summed, strict=True):
            found[k] = total if is_wanted else None
    return found


def _sum(transport: Transport, layout: _Layout, parts: Gradients, ranks: int) -> Gradients:
    members = [rank for rank in range(transport.size) if ranks >> rank & 1]
    first, others = members[0], members[1:]
    if transport.rank not in members:
        for _ in range(2 * len(others)):
            transport.skip()
        return parts
    total = parts
    for rank in others:
        if transport.rank == rank:
            transport.send(layout.pack(parts), first, "a part of gradients")
        elif transport.rank == first:
            told = transport.receive(layout.rows("a part of gradients"), rank)
            total = list(map(_added, total, layout.unpack(told)))
        else:
            transport.skip()
    packed = layout.pack(total) if transport.rank == first else None
    for rank in others:
        if packed is not None:
            transport.send(packed, rank, "gradients")
        elif transport.rank == rank:
            told = transport.receive(layout.rows("gradients"), first)
            total = layout.unpack(told)
        else:
            transport.skip()
    return total


def _added(left: torch.Tensor | None, right: torch.Tensor | None) -> torch.Tensor | None:
    if left is None or right is None:
        return right if left is None else left
    return left + right


class _Layout:
    """How gradients of some tensors lie in a message: a mark for each, then their values."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tensors
        self.starts: list[int] = []
        self.size = aligned(len(tensors))
        for tensor in tensors:
            self.starts.append(self.size)
            self.size += aligned(tensor.nbytes)

    def rows(self, what: str) -> Rows:
        """What a receiver must know of a message."""
        return Rows((self.size,), torch.uint8, _HOST, what)

    def pack(self, gradients: Gradients) -> torch.Tensor:
        """The gradients as bytes."""
        packed = torch.zeros(self.size, dtype=torch.uint8)
        for k, gradient in enumerate(gradients):
            if gradient is not None:
                packed[k] = 1
                dense = gradient.to_dense() if gradient.is_sparse else gradient
                self._values(packed, k).copy_(dense)
        return packed

    def unpack(self, packed: torch.Tensor) -> Gradients:
        """The gradients of a message."""
        marks = packed[: len(self.tensors)].tolist()
        return [
            self._values(packed, k).to(tensor.device) if mark else None
            for k, (mark, tensor) in enumerate(zip(marks, self.tensors, strict=True))
        ]

    def _values(self, packed: torch.Tensor, k: int) -> torch.Tensor:
        tensor, start = self.tensors[k], self.starts[k]
        return packed[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
