"""Functions of `F` and `torch`, operators and their reflections, each as a one-line program."""

from __future__ import annotations

import torch
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from tests.existing_code.harness import Table

TABLE = Table()

TABLE.one_liners(
    "function:",
    {
        "linear": lambda x, w: F.linear(x, w),
        "linear with bias": lambda x, w: F.linear(x, w, w[0]),
        "softmax": lambda x: F.softmax(x, dim=-1),
        "softmax along 0": lambda x: x.softmax(0),
        "log softmax": lambda x: F.log_softmax(x, dim=1),
        "relu": lambda x: F.relu(x),
        "gelu": lambda x: F.gelu(x),
        "leaky relu": lambda x: F.leaky_relu(x, 0.1),
        "softplus": lambda x: F.softplus(x),
        "layer norm": lambda x, w: F.layer_norm(x, (4,), w[0], w[1]),
        "cross entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 3, 1])),
        "cross entropy of one": lambda x: F.cross_entropy(x[0], torch.tensor(2)),
        "nll": lambda x: F.nll_loss(x.log_softmax(1), torch.tensor([0, 3, 1])),
        "mse": lambda x: F.mse_loss(x, torch.ones(3, 4)),
        "mse with reduction": lambda x: F.mse_loss(x, x.detach() * 2, reduction="none"),
        "kl div": lambda x: F.kl_div(
            x.log_softmax(1), x.detach().softmax(1), reduction="batchmean"
        ),
        "binary cross entropy": lambda x: F.binary_cross_entropy_with_logits(x, torch.ones(3, 4)),
        "embedding": lambda x, w: F.embedding(torch.tensor([1, 3, 1]), w) * x,
        "one hot": lambda x: F.one_hot(torch.tensor([1, 3, 0]), 4) * x,
        "conv1d": lambda x, w: F.conv1d(x[None], w[None, :3, :2]),
        "max pool": lambda x: F.max_pool1d(x[None], 2),
        "adaptive pool": lambda x: F.adaptive_avg_pool1d(x[None], 2),
        "cosine similarity": lambda x: F.cosine_similarity(x[0], x[1], dim=0),
        "pairwise distance": lambda x: F.pairwise_distance(x[:1], x[1:2]),
        "normalize": lambda x: F.normalize(x, dim=1),
        "glu": lambda x: F.glu(x, 1),
        "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
        "bilinear": lambda x, w: F.bilinear(x, x, w[None]),
        "unary chain": lambda x: x.exp().log1p().sqrt().sigmoid().sin().abs(),
        "broadcast tensors": lambda x: torch.broadcast_tensors(x[0], x[1] * 2, x),
        "a grid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij"),
        "atleast 3d": lambda x: torch.atleast_3d(x, x * 2),
        "divergence of normals": lambda x: kl_divergence(
            Normal(x, x.exp()), Normal(x * 2, x.exp())
        ),
        "free functions": lambda x: torch.exp(-torch.abs(torch.tanh(x))),
    },
    3,
    4,
)

TABLE.one_liners(
    "operator:",
    {
        "arithmetic": lambda x: x + x * 3 - x / 2,
        "one minus": lambda x: 1 - x,
        "two over": lambda x: 2 / x,
        "square": lambda x: x**2,
        "to the power": lambda x: 2**x,
        "number plus": lambda x: 3 + x + 0.5,
        "number times": lambda x: 2 * (3.5 * x),
        "matmul with weight": lambda x, w: x @ w,
        "weight matmul": lambda x, w: w @ x.t(),
        "vector matmul": lambda x, w: x[0] @ w,
        "negation": lambda x: -x + +x.sin(),
        "absolute": lambda x: abs(x),
        "floor division": lambda x: (x // 0.3).detach() + x,
        "remainder": lambda x: (x % 0.7).detach() + x,
        "comparisons": lambda x: (x > 0).to(x.dtype) + (x <= 0.5) * x + (x != x).double(),
        "reflected comparison": lambda x: (0 < x) * x,  # noqa: SIM300
        "logic": lambda x: ((x > 0) & ~(x > 1) | (x < -1)).double() * x,
        "integer arithmetic": lambda x: (torch.arange(4) * 2 // 3 - 1) * x,
        "real minus recorded": lambda x, w: w[:3] - x,
        "recorded minus real": lambda x, w: x - w[:3],
        "addmm": lambda x, w: torch.addmm(w[0], x, w),
        "mv and dot": lambda x, w: w.mv(x[0]).dot(x[1]),
        "einsum": lambda x, w: torch.einsum("ij,kj->ik", x, w),
        "einsum of three": lambda x, w: torch.einsum("ij,jk,ik->i", x, w, x),
        "bmm": lambda x: torch.bmm(x[None], x.t()[None]),
        "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
        "sum of a list": lambda x: sum([x, x.sin(), x.cos()]),
    },
    3,
    4,
)

TABLE.one_liners(
    "choice:",
    {
        "where": lambda x: torch.where(x > 0, x, -2 * x),
        "where with number": lambda x: torch.where(x > 0, x, 0.0),
        "masked fill": lambda x: x.masked_fill(x < 0, -1.0),
        "clamp": lambda x: x.clamp(min=-0.5, max=0.5),
        "clamp min": lambda x: torch.clamp(x, min=0),
        "max": lambda x: x.max(),
        "max along": lambda x: torch.max(x, dim=1),
        "max values": lambda x: x.max(1)[0],
        "max by name": lambda x: x.max(dim=0, keepdim=True).values,
        "maximum": lambda x: torch.maximum(x, x.flip(1)),
        "min along": lambda x: x.min(0).indices,
        "topk": lambda x: x.topk(2),
        "sort": lambda x: x.sort(dim=1, descending=True),
        "argmax": lambda x: x.argmax(1),
        "argmax of all": lambda x: torch.argmax(x),
        "argsort": lambda x: x[0].argsort(),
        "gather": lambda x: x.gather(1, torch.tensor([[0, 1], [2, 3], [1, 1]])),
        "scatter": lambda x: torch.zeros(3, 6).scatter(1, torch.tensor([[0, 2, 1, 5]] * 3), x),
        "scatter add": lambda x: torch.zeros(2, 4).scatter_add(
            0, torch.tensor([[0, 1, 0, 1]] * 3), x
        ),
        "index select": lambda x: x.index_select(0, torch.tensor([2, 0, 2])),
        "index add": lambda x: torch.zeros(2, 4).index_add(0, torch.tensor([0, 1, 0]), x),
        "take along": lambda x: x.take_along_dim(x.argsort(1), 1),
        "cumsum": lambda x: x.cumsum(0),
        "cumprod": lambda x: torch.cumprod(x, dim=1),
        "any and all": lambda x: ((x > 0).any(), (x > 0).all(1)),
        "nonzero": lambda x: (x > 0).nonzero(),
        "masked select": lambda x: x.masked_select(x > 0),
        "unique": lambda x: torch.unique((x > 0).long()),
        "median": lambda x: x[:, :3].median(1).values,
        "isnan": lambda x: torch.isnan(x).sum() + x.sum(),
    },
    3,
    4,
)
