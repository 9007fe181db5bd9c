"""Rows that travel inside a graph of torch's autograd, and gradients that travel back.

Each hop takes a token from the one before it. So a backward pass, and a backward pass through that,
goes through all hops of a graph in one order, the same on all ranks, whether gradients come to them
or not. A rank that takes no part in a hop has it too, and only counts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from penstock.distributed.messages import aligned
from penstock.distributed.transport import Transport
from penstock.distributed.turns import Rows

#: Bytes in front of the rows: whether there are any.
_MARK = aligned(1)


@dataclass(frozen=True, slots=True)
class Hop:
    """Rows that go from one rank to another; there may be none, which both find out."""

    transport: Transport
    source: int
    target: int
    rows: Rows

    @property
    def back(self) -> Hop:
        """The way of the gradients."""
        return Hop(self.transport, self.target, self.source, self.rows)

    def travel(self, rows: torch.Tensor | None) -> torch.Tensor | None:
        """Take part: rows in at the source, out at the target."""
        transport = self.transport
        if transport.rank == self.source:
            transport.send(self._packed(rows), self.target, self.rows.what)
        elif transport.rank == self.target:
            size = _MARK + self.size
            room = Rows((size,), torch.uint8, self.rows.device, self.rows.what)
            return self._unpacked(transport.receive(room, self.source))
        else:
            transport.skip()
        return None

    @property
    def size(self) -> int:
        """How many bytes the rows have."""
        return torch.Size(self.rows.shape).numel() * self.rows.dtype.itemsize

    def _packed(self, rows: torch.Tensor | None) -> torch.Tensor:
        packed = torch.zeros(_MARK + self.size, dtype=torch.uint8, device=self.rows.device)
        if rows is not None:
            packed[0] = 1
            packed[_MARK:].view(self.rows.dtype).view(self.rows.shape).copy_(rows)
        return packed

    def _unpacked(self, packed: torch.Tensor) -> torch.Tensor | None:
        if not packed[0]:
            return None
        return packed[_MARK:].view(self.rows.dtype).view(self.rows.shape)


class HopNode(torch.autograd.Function):
    """The autograd node of a hop."""

    @staticmethod
    def forward(ctx: Any, hop: Hop, token: torch.Tensor, rows: torch.Tensor | None) -> Any:
        """Take part in the hop; the token goes on."""
        ctx.hop = hop
        ctx.set_materialize_grads(False)
        return token.clone(), hop.travel(rows)

    @staticmethod
    def backward(ctx: Any, token: torch.Tensor, rows: torch.Tensor | None) -> Any:
        """The same hop the other way, which can be differentiated in turn."""
        return None, *HopNode.apply(ctx.hop.back, token, rows)  # type: ignore[no-untyped-call]
