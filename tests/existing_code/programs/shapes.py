"""Views, joins and reductions, each as a one-line program on a matrix of 3 x 4 or a vector."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.existing_code.harness import Table

TABLE = Table()

TABLE.one_liners(
    "shape:",
    {
        "cat": lambda x: torch.cat([x, x * 2], dim=0),
        "cat along the last": lambda x: torch.cat((x, x.sin()), -1),
        "stack": lambda x: torch.stack([x, x + 1]),
        "stack along 1": lambda x: torch.stack([x, x + 1], dim=1),
        "split": lambda x: x.split(2, dim=1),
        "split by sizes": lambda x: torch.split(x, [1, 2]),
        "chunk": lambda x: torch.chunk(x, 2, dim=1)[1],
        "chunk along 0": lambda x: x.chunk(3),
        "sum": lambda x: x.sum(),
        "sum keepdim": lambda x: torch.sum(x, dim=0, keepdim=True),
        "mean over two": lambda x: x.mean(dim=(0, 1)),
        "prod": lambda x: x.prod(0),
        "norm": lambda x: x.norm(dim=1),
        "var": lambda x: x.var(0),
        "logsumexp": lambda x: x.logsumexp(0),
        "repeat": lambda x: x.repeat(2, 3),
        "expand": lambda x: x[0].expand(5, 4),
        "expand as": lambda x: x[:, :1].expand_as(x) + x,
        "view": lambda x: x.view(2, 6),
        "view minus one": lambda x: (x * 2).view(-1),
        "reshape": lambda x: x.reshape(4, 3).exp(),
        "unsqueeze": lambda x: x.unsqueeze(0).unsqueeze(-1),
        "squeeze": lambda x: x.unsqueeze(1).squeeze(1) + x.unsqueeze(0).squeeze(),
        "transpose": lambda x: x.transpose(0, 1).tanh(),
        "permute": lambda x: x.view(3, 2, 2).permute(2, 0, 1),
        "flatten": lambda x: torch.flatten(x),
        "capital T": lambda x: x.T @ x,
        "t": lambda x: x @ x.t(),
        "mT": lambda x: x.mT.sin(),
        "contiguous": lambda x: x.t().contiguous().view(-1),
        "unbind": lambda x: sum(x.unbind(1)),
        "narrow": lambda x: x.narrow(1, 1, 2),
        "flip": lambda x: x.flip(0),
        "roll": lambda x: x.roll(1, 1),
        "tile": lambda x: x.tile(2),
        "movedim": lambda x: torch.movedim(x, 0, 1),
        "pad": lambda x: F.pad(x, (1, 2), value=3.0),
        "tril": lambda x: x.tril(),
        "diag": lambda x: x[:, :3].diag(),
        "outer": lambda x: torch.outer(x[0], x[1]),
        "broadcast": lambda x: x[:, None] * x[None],
        "meshgrid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij"),
    },
    3,
    4,
)
