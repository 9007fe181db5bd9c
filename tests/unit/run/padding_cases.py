"""Functions of one instance with dynamic dimensions, for the rules of padding.

Shapes name dynamic dimensions; integers are drawn as indices below `CLASSES`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

CLASSES, WIDTH = 4, 3
N, M = ("n", WIDTH), ("m", WIDTH)


def _attend(memory: Tensor, query: Tensor) -> Tensor:
    return torch.softmax(memory @ query, 0) @ memory


def _additive(memory: Tensor, query: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(torch.tanh(memory + query) @ v, 0) @ memory


def _cross(source: Tensor, target: Tensor) -> Tensor:
    return torch.softmax(target @ source.T / math.sqrt(WIDTH), -1) @ source


def _heads(x: Tensor) -> Tensor:
    heads = x.view(x.shape[0], WIDTH, 1).transpose(0, 1)
    return F.scaled_dot_product_attention(heads, heads, heads).transpose(0, 1).flatten(1)


def _causal(x: Tensor) -> Tensor:
    n = x.shape[0]
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    return (x @ x.T).masked_fill(later, -math.inf).softmax(1) @ x


def _softmax_of_infinite(x: Tensor) -> Tensor:
    return torch.softmax(x.masked_fill(x < 0, -math.inf), -1).nan_to_num().sum(0)


#: name: (function, shapes of the operands)
CASES = {
    "attend": (_attend, [N, (WIDTH,)]),
    "additive attention": (_additive, [N, (WIDTH,), (WIDTH,)]),
    "cross attention": (_cross, [N, M]),
    "heads": (_heads, [N]),
    "causal": (_causal, [N]),
    "sum": (lambda x: x.sum(0), [N]),
    "sum of all": (lambda x: x.sum(), [N]),
    "mean": (lambda x: x.mean(0), [N]),
    "mean of all": (lambda x: (x * x).mean(), [N]),
    "mean by hand": (lambda x: x.sum(0) / x.shape[0], [N]),
    "mean by a factor": (lambda x: x.sum(0) * (1.0 / x.shape[0]), [N]),
    "mean kept": (lambda x: x - x.mean(0, keepdim=True), [N]),
    "variance": (lambda x: x.var(0), [N]),
    "biased variance": (lambda x: x.var(0, unbiased=False), [N]),
    "normalised": (lambda x: x / x.norm(), [N]),
    "norms": (lambda x: x.norm(dim=1).sum(), [N]),
    "amax": (lambda x: x.amax(0), [N]),
    "amin of all": (lambda x: (2 + x).amin(), [N]),
    "max": (lambda x: x.max(0).values, [N]),
    "min of all": (lambda x: x.abs().min(), [N]),
    "argmax": (lambda x: x.argmax(0), [N]),
    "argmin": (lambda x: x.argmin(0), [N]),
    "any": (lambda x: (x > 1).any(0), [N]),
    "all": (lambda x: (x > -1).all(0), [N]),
    "count": (lambda x: (x > 0).sum(), [N]),
    "logsumexp": (lambda x: x.logsumexp(0), [N]),
    "prod": (lambda x: x.prod(0), [N]),
    "softmax": (lambda x: x.softmax(0), [N]),
    "log_softmax": (lambda x: x.log_softmax(0).sum(1), [N]),
    "softmax of another dimension": (lambda x: x.softmax(1).sum(0), [N]),
    "entropy": (lambda x: -(x.softmax(0) * x.softmax(0).log()).sum(0), [N]),
    "softmax after infinities": (_softmax_of_infinite, [N]),
    "cumsum": (lambda x: x.cumsum(0), [N]),
    "logs": (lambda x: (x * x).log().sum(0), [N]),
    "exponentials": (lambda x: (100 - 50 * x.abs()).exp().sum(0), [N]),
    "roots": (lambda x: x.abs().sqrt().sum(), [N]),
    "inverses": (lambda x: (1 / x).sum(0), [N]),
    "shares": (lambda x: (x.abs() / x.abs().sum(0)).square().sum(0), [N]),
    "powers": (lambda x: (x.abs() ** 1.5).sum(0), [N]),
    "broadcast": (lambda x, b: ((x + b) * b).sigmoid().log().mean(), [N, (WIDTH,)]),
    "linear": (lambda x, w: (x @ w).relu().sum(0), [N, (WIDTH, 2)]),
    "gram": (lambda x: x.T @ x, [N]),
    "dot": (lambda x, y: x @ y, [("n",), ("n",)]),
    "outer": (lambda x, y: torch.outer(x, y).exp().sum(), [("n",), ("m",)]),
    "bilinear": (lambda x, y: ((x @ y.T) ** 2).sum(), [N, M]),
    "first": (lambda x: x[0], [N]),
    "last": (lambda x: x[-1], [N]),
    "differences": (lambda x: (x[1:] - x[:-1]).square().sum(), [N]),
    "all but the last": (lambda x: x[:-1], [N]),
    "flip": (lambda x: x.flip(0).cumsum(0), [N]),
    "cat": (lambda x, y: torch.cat([x, y]).cumsum(0), [N, M]),
    "cat with one": (lambda x, y: torch.cat([y[None], x, y[None]]).cumsum(0), [N, (WIDTH,)]),
    "cat beside": (lambda x, y: torch.cat([x, y], 1).logsumexp(0), [N, N]),
    "stack": (lambda x, y: torch.stack([x, y]).sum(1), [N, N]),
    "pad": (lambda x: F.pad(x, (0, 0, 1, 2), value=1.0).prod(0), [N]),
    "conv": (lambda x, w: F.conv1d(x.T, w, padding=1).T, [N, (2, WIDTH, 3)]),
    "narrow conv": (lambda x, w: F.conv1d(x.T, w).amax(1), [N, (2, WIDTH, 3)]),
    "layer_norm": (lambda x: F.layer_norm(x, (WIDTH,)).softmax(0), [N]),
    "embedding": (lambda i, w: F.embedding(i, w).sum(0), [("n", "index"), (CLASSES, WIDTH)]),
    "cross_entropy": (F.cross_entropy, [("n", CLASSES), ("n", "index")]),
    "smoothed cross_entropy": (
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
        [("n", CLASSES), ("n", "index")],
    ),
    "summed cross_entropy": (
        lambda x, y: F.cross_entropy(x, y, reduction="sum", ignore_index=2),
        [("n", CLASSES), ("n", "index")],
    ),
    "losses": (
        lambda x, y: F.cross_entropy(x, y, reduction="none"),
        [("n", CLASSES), ("n", "index")],
    ),
    "gather": (
        lambda x, i: x.gather(1, i[:, None]).sum(),
        [("n", CLASSES), ("n", "index")],
    ),
    "positions": (lambda x: (x.T * torch.arange(x.shape[0])).sum(1), [N]),
    "weights by length": (lambda x: (x * x.shape[0]).sum(0) + x.shape[0], [N]),
    "flattened": (lambda x: x.reshape(-1).softmax(0).square().sum(), [N]),
    "flattened the other way": (lambda x: x.T.reshape(-1).logsumexp(0), [N]),
    "tril": (lambda x: (x @ x.T).tril().sum(0), [N]),
    "binary loss": (
        lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
        [N, N],
    ),
    "squared loss": (F.mse_loss, [N, N]),
}
