"""Everyday operations as single-instance functions with their inputs: (name, inputs, function).

An input is ("row" | "uniform", shape, dtype); integers are drawn below the bound given as a fourth
item.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from penstock.run.batched import BlockInput


@dataclass(frozen=True)
class Given:
    """One input of a case."""

    kind: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    below: int = 2

    def spec(self) -> BlockInput:
        return BlockInput(self.kind, self.dtype, self.shape)

    def make(self, rows: int, generator: torch.Generator) -> torch.Tensor:
        shape = (rows, *self.shape) if self.kind == "row" else self.shape
        dtype = getattr(torch, self.dtype)
        if dtype.is_floating_point:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        return torch.randint(0, self.below, shape, generator=generator).to(dtype)


def row(*shape: int, dtype: str = "float32", below: int = 2) -> Given:
    return Given("row", shape, dtype, below)


def uniform(*shape: int, dtype: str = "float32", below: int = 2) -> Given:
    return Given("uniform", shape, dtype, below)


def integers(*shape: int, below: int) -> Given:
    return Given("row", shape, "int64", below)


def booleans(*shape: int) -> Given:
    return Given("row", shape, "bool")


def with_module(
    module: nn.Module, *rows: Given, call: Callable[..., Any] | None = None
) -> tuple[tuple[Given, ...], Callable[..., tuple[torch.Tensor, ...]]]:
    """A module's forward with its parameters as uniform inputs."""
    names = [name for name, _ in module.named_parameters()]
    parameters = [uniform(*value.shape) for _, value in module.named_parameters()]

    def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        state = dict(zip(names, tensors, strict=False))
        arguments = tensors[len(names) :]
        result = torch.func.functional_call(
            module, state, tuple(arguments) if call is None else call(*arguments)
        )
        return tuple(leaf for leaf in tree_leaves(result) if leaf is not None)

    return (*parameters, *rows), function


CASES: dict[str, tuple[tuple[Given, ...], Callable[..., Any]]] = {}


def case(name: str, *given: Given) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def as_tuple(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            result = function(*tensors)
            return tuple(result) if isinstance(result, (tuple, list)) else (result,)

        CASES[name] = (given, as_tuple)
        return function

    return register


def module_case(
    name: str, module: nn.Module, *rows: Given, call: Callable[..., Any] | None = None
) -> None:
    CASES[name] = with_module(module, *rows, call=call)


def attention(*length: int) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(8, 2, bias=True)


def three(x: torch.Tensor, *more: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x, x, x)


module_case("linear 1-D", nn.Linear(4, 3), row(4))
module_case("linear 2-D", nn.Linear(4, 3), row(5, 4))
module_case("linear [1, K]", nn.Linear(4, 3), row(1, 4))
module_case("linear without bias", nn.Linear(4, 3, bias=False), row(4))
module_case("embedding 0-d", nn.Embedding(6, 3), integers(below=6))
module_case("embedding 1-D", nn.Embedding(6, 3), integers(4, below=6))
module_case("embedding with padding", nn.Embedding(6, 3, padding_idx=0), integers(4, below=6))
module_case(
    "lstm cell", nn.LSTMCell(4, 3), row(4), row(3), row(3), call=lambda x, h, c: (x, (h, c))
)
module_case("lstm cell without state", nn.LSTMCell(4, 3), row(4))
module_case("gru cell", nn.GRUCell(4, 3), row(4), row(3))
module_case("rnn cell", nn.RNNCell(4, 3), row(4), row(3))
module_case("rnn cell relu", nn.RNNCell(4, 3, nonlinearity="relu"), row(4), row(3))
module_case("bilinear", nn.Bilinear(4, 5, 3), row(4), row(5))
module_case("bilinear 2-D", nn.Bilinear(4, 5, 3), row(2, 4), row(2, 5))
module_case("layer norm", nn.LayerNorm(4), row(4))
module_case("layer norm 2-D", nn.LayerNorm(4), row(3, 4))
module_case("rms norm", nn.RMSNorm(4), row(3, 4))
module_case("group norm", nn.GroupNorm(2, 4), row(1, 4, 3))
module_case("attention module eval", nn.MultiheadAttention(8, 2).eval(), row(3, 8), call=three)
module_case("attention module train", nn.MultiheadAttention(8, 2), row(3, 8), call=three)
module_case("lstm layer", nn.LSTM(4, 3), row(5, 4))
module_case("gru layer", nn.GRU(4, 3), row(5, 4))
module_case("conv1d", nn.Conv1d(3, 4, 3, padding=1), row(3, 7))
module_case("conv1d stride", nn.Conv1d(4, 4, 3, stride=2, groups=2), row(4, 7))
module_case("conv2d", nn.Conv2d(3, 4, 3), row(3, 6, 6))
module_case("conv transpose 1d", nn.ConvTranspose1d(3, 4, 3), row(3, 6))
module_case("dropout eval", nn.Dropout(0.5).eval(), row(4))
module_case("batch norm eval", nn.BatchNorm1d(3, track_running_stats=False), row(4, 3))
module_case("prelu", nn.PReLU(), row(4))
module_case(
    "transformer layer",
    nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
    row(3, 8),
)


@case("attention", row(2, 3, 4), row(2, 5, 4), row(2, 5, 4))
def _(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


@case("attention causal", row(2, 3, 4), row(2, 3, 4), row(2, 3, 4))
def _(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.0)


@case("attention bool mask", row(2, 3, 4), row(2, 5, 4), row(2, 5, 4), booleans(3, 5))
def _(q, k, v, mask):
    keep = mask | (torch.arange(5) == 0)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


@case("attention float mask", row(2, 3, 4), row(2, 5, 4), row(2, 5, 4), uniform(3, 5))
def _(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)


@case("pooling", row(3, 8))
def _(x):
    return F.max_pool1d(x, 2), F.avg_pool1d(x, 3, stride=2), F.adaptive_avg_pool1d(x, 2)


@case("pooling 2-D", row(3, 6, 6))
def _(x):
    return F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.interpolate(x[None], scale_factor=2)[0]


@case("cross entropy", row(5), integers(below=5))
def _(x, y):
    return F.cross_entropy(x, y), F.nll_loss(x.log_softmax(-1), y)


@case("cross entropy 2-D", row(4, 5), integers(4, below=5))
def _(x, y):
    return (
        F.cross_entropy(x, y),
        F.cross_entropy(x, y, reduction="sum", label_smoothing=0.1),
        F.cross_entropy(x, y, reduction="none", ignore_index=1),
    )


@case("losses", row(4), row(4))
def _(x, y):
    return (
        F.mse_loss(x, y),
        F.l1_loss(x, y, reduction="sum"),
        F.smooth_l1_loss(x, y),
        F.huber_loss(x, y, delta=0.5),
        F.binary_cross_entropy_with_logits(x, y.sigmoid()),
        F.kl_div(x.log_softmax(0), y.softmax(0), reduction="sum"),
        F.cosine_similarity(x, y, dim=0),
    )


@case("join and cut", row(4), row(4), row(2, 4), uniform(3))
def _(x, y, z, u):
    first, *_ = torch.cat([x, y, u]).split([3, 4, 4])
    second = torch.stack([x, y]).chunk(2, dim=1)[1]
    third = z.unbind(0)[1]
    return (
        first,
        second,
        third,
        torch.cat([z, torch.stack([x, y])]),
        torch.vstack([x, y]),
        torch.hstack([x, u]),
    )


@case("gather and scatter", row(3, 4), integers(3, 2, below=4), integers(2, below=3), row(3, 2))
def _(x, i, j, s):
    base = torch.zeros(3, 4)
    return (
        x.gather(1, i),
        base.scatter(1, i[:, :1], s),
        base.scatter_add(1, i, s),
        x.scatter(1, i, 2.0),
        x.index_select(0, j),
        x.index_add(0, j, s.t().repeat(1, 2)[:, :4]),
        torch.take_along_dim(x, i, 1),
        x.scatter_reduce(1, i, s, "amax"),
        x.index_fill(0, j, 1.0),
        x.index_copy(0, j[:1], torch.ones(1, 4)),
    )


@case("put and take", row(3, 4), integers(1, below=12), row(1))
def _(x, i, s):
    return x.put(i, s), x.take(i), x.masked_scatter(x > 0, torch.arange(12.0))


@case("order", row(3, 6))
def _(x):
    values, places = x.topk(2)
    ordered, order = x.sort(dim=0, descending=True)
    return (
        values,
        places,
        ordered,
        order,
        x.argsort(),
        x.argmax(),
        x.argmax(1),
        x.argmin(0, keepdim=True),
        *x.max(1),
        x.amax(0),
        *x.kthvalue(2),
        *x.median(1),
        *x.cummax(0),
    )


@case("choose", row(4), row(4), booleans(4))
def _(x, y, m):
    return (
        torch.where(m, x, y),
        x.masked_fill(m, -math.inf),
        torch.where(m, x, 0.0),
        torch.maximum(x, y),
        x.clamp(-0.5, 0.5),
        x.clamp_min(0),
        torch.lerp(x, y, 0.3),
    )


@case("softmax", row(3, 4))
def _(x):
    return (
        x.softmax(-1),
        x.log_softmax(0),
        x.logsumexp(1),
        x.logcumsumexp(0),
        F.softmin(x, 0),
        F.gumbel_softmax.__doc__ and x.logsumexp((0, 1)),
    )


@case("softmax 1-D", row(4))
def _(x):
    return x.softmax(0), x.log_softmax(-1), x.logsumexp(0)


@case("products", row(3, 4), row(4, 2), row(4), row(3), uniform(4, 5), uniform(5, 4))
def _(a, b, v, w, u, t):
    return (
        a @ b,
        a @ v,
        a.mv(v),
        t @ v,
        torch.mv(t, v),
        w @ a,
        a @ u,
        v @ u,
        v.dot(v),
        torch.inner(v, v),
        torch.outer(w, v),
        torch.addmv(w, a, v),
        torch.addmm(torch.zeros(3, 2), a, b),
        torch.addr(a, w, v),
        torch.linalg.multi_dot([a, u, t]),
        torch.kron(w, v),
        t @ a.t(),
    )


@case("batched products", row(2, 3, 4), row(2, 4, 5), uniform(4, 5), uniform(2, 4, 5))
def _(a, b, u, w):
    return (
        torch.bmm(a, b),
        a @ b,
        a @ u,
        a @ w,
        torch.bmm(a, w),
        torch.baddbmm(torch.zeros(2, 3, 5), a, b),
        torch.tensordot(a, w, dims=([0, 2], [0, 1])),
    )


@case("einsum", row(3, 4), row(4), uniform(4, 5))
def _(a, v, u):
    return (
        torch.einsum("ij,j->i", a, v),
        torch.einsum("ij,jk->ik", a, u),
        torch.einsum("ij,kj->ik", a, a),
        torch.einsum("i,i", v, v),
    )


@case("running", row(3, 4))
def _(x):
    return (
        x.cumsum(0),
        x.cumprod(1),
        x.prod(0),
        x.prod(),
        x.diff(dim=1),
        x.sum(),
        x.mean(0),
        x.mean(),
        x.nansum(1),
    )


@case("spread", row(3, 4))
def _(x):
    return (
        x.norm(),
        x.norm(dim=0),
        x.norm(p=1, dim=1),
        torch.linalg.norm(x),
        x.var(),
        x.var(0, unbiased=False),
        x.std(1),
        *torch.var_mean(x, 0),
        F.normalize(x, dim=1),
        torch.linalg.vector_norm(x, 3),
    )


@case("one hot", integers(4, below=5))
def _(i):
    return F.one_hot(i, 5), F.one_hot(i[0], 5), i == 2, i.bincount(minlength=5) * 0 if False else i


@case("triangles", row(3, 4))
def _(x):
    return (
        x.triu(),
        x.tril(-1),
        torch.ones(3, 3).triu(1) + x[:, :3],
        x.diagonal(),
        torch.diag(x[:, 0]),
        torch.diag_embed(x),
    )


@case("made inside", row(4))
def _(x):
    return (
        x + torch.arange(4),
        torch.zeros(3),
        x.new_zeros(2, 2),
        torch.full((2,), 1.5) * x[0],
        torch.ones_like(x),
        x.new_tensor([1.0, 2.0]),
        torch.tensor(3.0) * x,
        torch.linspace(0, 1, 4) * x,
        torch.eye(4) * x,
        torch.empty_like(x).fill_(2.0),
    )


@case("casts", row(4), integers(4, below=7), booleans(4))
def _(x, i, m):
    return (
        x.double(),
        x.to(torch.bfloat16),
        i.float() + x,
        m.long() + i,
        x.long(),
        m.to(x.dtype) * x,
        i.to(torch.int32),
        x.bool(),
        x.float(),
    )


@case("comparisons", row(4), row(4), uniform(4))
def _(x, y, u):
    return (
        x > y,
        x <= u,
        x == x,
        (x > 0) & (y < 0),
        ~(x > 0),
        (x > 0).any(),
        (x != y).all(),
        torch.isnan(x),
        torch.logical_xor(x > 0, y > 0),
        torch.isclose(x, y),
        torch.isin(x, u),
        (x > 0).sum(),
    )


@case("integers", integers(4, below=9), integers(4, below=9))
def _(i, j):
    return (
        i + j,
        i * j - 3,
        i // (j + 1),
        i % (j + 1),
        i << 2,
        i >> 1,
        i & j,
        i | j,
        i ^ j,
        -i,
        i.abs(),
        torch.div(i, j + 1, rounding_mode="trunc"),
        i / (j + 1),
        i**2,
        i.sum(),
        i.max(),
        i.remainder(3),
    )


@case("pointwise", row(3, 4), row(4))
def _(x, y):
    return (
        x.relu(),
        F.gelu(x),
        F.silu(x),
        F.softplus(x),
        F.leaky_relu(x),
        F.elu(x),
        x.exp().log1p(),
        x.abs().sqrt(),
        x.pow(2),
        2.0**x,
        1.0 - x,
        1.0 / (x.abs() + 1),
        x.sign(),
        x.round(),
        x.floor(),
        x * y,
        F.hardtanh(x),
        F.glu(x),
        F.logsigmoid(x),
        torch.atan2(x, y),
        x.erf(),
        torch.addcmul(x, x, y, value=0.5),
        x.nan_to_num(),
        F.mish(x),
        F.relu6(x),
        F.hardswish(x),
        x.sin(),
        torch.hypot(x, y),
    )


@case("in place inside", row(4))
def _(x):
    y = torch.zeros(4)
    y += x
    y[1:3] = 7.0
    y[0].mul_(3)
    y.relu_()
    z = x.clone()
    z[x > 0] = 0.0
    z.clamp_(max=0.5)
    return y, z


@case("0-d index on a table", integers(below=6), integers(below=3), uniform(6, 3), uniform(6, 5, 3))
def _(i, j, table, cube):
    return (
        table[i],
        table[i, j],
        table[:, j],
        table[i][j],
        cube[i, :, j],
        cube[i, 1:3],
        cube[..., j],
        table[-1 - i],
        cube[None, i, 2],
    )


@case("0-d index on a row", integers(below=3), row(3, 4), integers(2, below=4), booleans(3))
def _(i, x, j, m):
    return x[i], x[i, 1:], x[i, j], x[i][None], x[-1 - i]


@case("0-d index written", integers(below=3), row(3, 4), row(4))
def _(i, x, v):
    y = x.clone()
    y[i] = v
    z = torch.zeros(3)
    z[i] = 1.0
    return y, z


@case("advanced index", row(3, 4), integers(2, below=3), integers(2, below=4), uniform(5, 4))
def _(x, i, j, u):
    return (
        x[i],
        x[i, j],
        x[:, j],
        u[i],
        u[i, j],
        x[[0, 2]],
        x[torch.tensor([0, 2])],
        x.index_put((i,), torch.ones(4), accumulate=True),
    )


@case("slices", row(5, 4))
def _(x):
    return (
        x[1],
        x[-1],
        x[1:3],
        x[:, ::2],
        x[-2:],
        x[..., 1],
        x[:, None],
        x[1:, :-1],
        x.narrow(0, 1, 2),
        x[::-1] if False else x.flip(0),
        x.select(1, 2),
        x.unfold(0, 3, 1),
    )


@case("moves", row(2, 3, 4))
def _(x):
    return (
        x.flip(0, 2),
        x.roll(1, 1),
        x.roll(2),
        x.permute(2, 0, 1),
        x.transpose(0, 1),
        x.reshape(6, 4),
        x.flatten(),
        x.view(-1),
        x.repeat(2, 1, 1),
        x.expand(5, 2, 3, 4),
        x.movedim(0, 2),
        x.tile(2),
        x.repeat_interleave(2, 0),
        torch.rot90(x),
        x.unflatten(2, (2, 2)),
        x.squeeze(),
        x[:1].squeeze(0),
        x.mT,
    )


@case("pad and mesh", row(3, 4), row(2))
def _(x, y):
    first, second = torch.meshgrid(x[0], y, indexing="ij")
    return (
        F.pad(x, (1, 2)),
        F.pad(x, (1, 0, 0, 1), value=3.0),
        first,
        second,
        torch.cartesian_prod(x[0], y),
        F.pad(x[None], (1, 1), mode="replicate")[0],
        torch.broadcast_tensors(x, y[:1])[1],
    )


@case("distances", row(3, 4), row(5, 4), uniform(6, 4))
def _(x, y, u):
    return (
        torch.cdist(x, y),
        torch.cdist(x, u),
        torch.cdist(x, y, p=1.0),
        F.pairwise_distance(x, y[:3]),
    )


@case("linear algebra", row(3, 3))
def _(x):
    a = x @ x.T + torch.eye(3)
    return (
        torch.linalg.inv(a),
        torch.linalg.det(a),
        torch.linalg.solve(a, x),
        torch.linalg.cholesky(a),
        x.trace(),
        torch.linalg.eigvalsh(a),
        torch.matrix_exp(x),
        torch.cross(x, x.flip(0), dim=1),
    )


@case("scalars", row(), row(), integers(below=5))
def _(x, y, i):
    return (
        x + y,
        x * i,
        x.sigmoid(),
        torch.stack([x, y]),
        x.expand(3),
        x.reshape(1),
        (x > y),
        i + 1,
        torch.cat([x[None], y[None]]),
        x.unsqueeze(0).sum(),
    )


@case("empty inner dimension", row(0, 4), row(3, 0), uniform(4, 2))
def _(x, y, u):
    return (
        x.sum(0),
        x @ u,
        torch.cat([x, torch.ones(1, 4)]),
        y.sum(1),
        y.exp(),
        y.t() @ torch.ones(3, 2),
    )


@case("does not depend on rows", row(3), uniform(4))
def _(x, u):
    return u * 2, torch.ones(2), x


@case("uniform indices", row(5, 4), Given("uniform", (2,), "int64", 5))
def _(x, i):
    return x[i], x.index_select(0, i), x[i[0]]


@case("histogram by hand", integers(6, below=4))
def _(i):
    return torch.zeros(4).index_add(0, i, torch.ones(6)), torch.zeros(
        4, dtype=torch.int64
    ).scatter_add(0, i, torch.ones_like(i))
