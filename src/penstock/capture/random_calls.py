"""Random operations, recorded as functions of a key.

Each draws from its own `RandomKey`, so that results do not depend on how a program is batched. The
numbers come from `run.random_bits`; here they have types only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from penstock.calls.structure import flatten
from penstock.capture.location import user_line
from penstock.capture.recording import record, record_named
from penstock.capture.source import user_source
from penstock.capture.tensor_rules import shape_of
from penstock.capture.traced_tensor import TracedTensor
from penstock.errors import ArgumentError, report
from penstock.ir.program import Node, RandomKey
from penstock.ir.types import TensorType

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


def draw(tracer: Tracer, kind: str, typed: Callable[..., Any], *args: Any) -> TracedTensor:
    """The random function of that name with a key of its own; `typed` has its result types."""
    site = tracer.scope.next_site()
    value = tracer.new_value(TensorType("int64"))
    tracer.scope.nodes.append(Node(RandomKey(site), (), (value,), user_source(), site))
    key = tracer.wrap(value)
    drawn: TracedTensor = record_named(tracer, f"penstock.random.{kind}", typed, (key, *args), {})
    return drawn


def _numbers(
    tracer: Tracer, kind: str, shape: Any, dtype: torch.dtype | None = None
) -> TracedTensor:
    """Random numbers of that kind ("uniform", "normal") and shape."""

    def typed(key: torch.Tensor, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    return draw(tracer, kind, typed, tuple(shape), dtype or torch.get_default_dtype())


def _dropout(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = ("input", "p", "training", "inplace")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    tensor = tracer.tensor(given["input"])
    p = float(given.get("p", 0.5))
    if not given.get("training", given.get("train", True)) or p == 0:
        return tensor
    return draw(tracer, "dropout", lambda key, source, p: torch.empty_like(source), tensor, p)


def _attention(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Attention with dropout on its weights is written out; without, it is one call."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if not given.get("dropout_p"):
        return record(tracer, function, args, kwargs)
    if given.get("is_causal") or given.get("enable_gqa"):
        raise _not_counter_based("scaled_dot_product_attention with is_causal or enable_gqa")
    query, key, value = (tracer.tensor(given[name]) for name in names[:3])
    scale = given.get("scale") or query.traced.fakes[0].shape[-1] ** -0.5
    scores = record(
        tracer, torch.matmul, (query, record(tracer, torch.transpose, (key, -2, -1), {})), {}
    )
    scores = record(tracer, torch.mul, (scores, scale), {})
    if given.get("attn_mask") is not None:
        mask = tracer.tensor(given["attn_mask"])
        if mask.traced.fakes[0].dtype is torch.bool:
            hidden = record(tracer, torch.Tensor.logical_not, (mask,), {})
            scores = record(tracer, torch.Tensor.masked_fill, (scores, hidden, -math.inf), {})
        else:
            scores = record(tracer, torch.add, (scores, mask), {})
    weights = record(tracer, torch.softmax, (scores, -1), {})
    weights = _dropout(tracer, function, (weights, given["dropout_p"]), {})
    return record(tracer, torch.matmul, (weights, value), {})


def _written_out(name: str, position: int) -> Callable[..., Any]:
    """Run the Python body of a composite function where it draws random numbers inside."""

    def rule(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        p = kwargs.get(name, args[position] if len(args) > position else 0.0)
        if not p or not kwargs.get("training", True):
            return record(tracer, function, args, kwargs)
        plain = {"has_torch_function": lambda *_: False}
        body = FunctionType(function.__code__, {**function.__globals__, **plain})
        body.__defaults__, body.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
        with tracer.mode:
            return body(*args, **kwargs)

    return rule


def _refused(name: str) -> Callable[..., Any]:
    def rule(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("training") is False:
            return record(tracer, function, args, kwargs)
        raise _not_counter_based(name)

    return rule


def _not_counter_based(name: str) -> ArgumentError:
    return ArgumentError(
        report(
            f"{name}: this random operation has no form that is independent of batching.",
            where=user_line(),
            facts=[
                ("call", name),
                ("available", "dropout, rand, randn, randint, bernoulli, normal"),
            ],
            todo="Build it from torch.rand_like or torch.randn_like, or draw outside the program.",
        )
    )


def _sized(kind: str) -> Callable[..., Any]:
    def rule(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        size = kwargs.get("size", args)
        flat, _ = flatten(tuple(size))
        return _numbers(tracer, kind, flat, kwargs.get("dtype"))

    return rule


def _alike(kind: str) -> Callable[..., Any]:
    def rule(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = tracer.tensor(args[0])
        dtype = kwargs.get("dtype") or tensor.traced.fakes[0].dtype
        return _numbers(tracer, kind, shape_of(tracer, tensor), dtype)

    return rule


def _bernoulli(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = tracer.tensor(args[0])
    dtype = tensor.traced.fakes[0].dtype
    p = kwargs.get("p", args[1] if len(args) > 1 else tensor)
    draws = _numbers(tracer, "uniform", shape_of(tracer, tensor), _floating(dtype))
    chosen = record(tracer, torch.Tensor.lt, (draws, p), {})
    return record(tracer, torch.Tensor.to, (chosen, dtype), {})


def _randint(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    parts = list(args)
    size = kwargs["size"] if "size" in kwargs else parts.pop()
    high = kwargs["high"] if "high" in kwargs else parts.pop()
    low = kwargs.get("low", parts.pop() if parts else 0)
    made = draw(tracer, "randint", _whole_numbers, low, high, tuple(size))
    dtype = kwargs.get("dtype")
    return made if dtype is None else record(tracer, torch.Tensor.to, (made, dtype), {})


def _whole_numbers(key: torch.Tensor, low: int, high: int, shape: Any) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int64)


def _normal(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = ("mean", "std", "size")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    mean, std = given.get("mean", 0.0), given.get("std", 1.0)
    shaped = next((item for item in (mean, std) if isinstance(item, torch.Tensor)), None)
    if shaped is None:
        draws = _numbers(tracer, "normal", given["size"], given.get("dtype"))
    else:
        tensor = tracer.tensor(shaped)
        draws = _numbers(tracer, "normal", shape_of(tracer, tensor), tensor.traced.fakes[0].dtype)
    scaled = record(tracer, torch.mul, (draws, std), {})
    return record(tracer, torch.add, (scaled, mean), {})


def _multinomial(
    tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Each weight is the rate of an exponential waiting time; the shortest ones are drawn."""
    bound = dict(zip(("input", "num_samples", "replacement"), args, strict=False)) | kwargs
    weights = tracer.tensor(bound["input"])
    count = bound["num_samples"]
    shape = shape_of(tracer, weights)
    is_repeated = bound.get("replacement", False) and count > 1
    size = (count, *shape) if is_repeated else shape
    draws = _numbers(tracer, "uniform", size, _floating(weights.traced.fakes[0].dtype))
    noise = record(
        tracer, torch.Tensor.log1p, (record(tracer, torch.Tensor.neg, (draws,), {}),), {}
    )
    noise = record(tracer, torch.div, (noise, weights), {})
    if is_repeated:
        best = record(tracer, torch.Tensor.argmax, (noise, -1), {})
        return record(tracer, torch.Tensor.movedim, (best, 0, -1), {})
    return record(tracer, torch.Tensor.topk, (noise, count), {}).indices


def _floating(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


_WITHOUT_KEYS = [
    "alpha_dropout",
    "feature_alpha_dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "rrelu",
    "gumbel_softmax",
]

RANDOM_RULES: dict[str, Callable[..., Any]] = {
    "torch.nn.functional.dropout": _dropout,
    "torch.dropout": _dropout,
    "torch.nn.functional.scaled_dot_product_attention": _attention,
    "torch.nn.functional.multi_head_attention_forward": _written_out("dropout_p", 10),
    **{f"torch.nn.functional.{name}": _refused(name) for name in _WITHOUT_KEYS},
    "torch.randperm": _refused("randperm"),
    "torch.rand": _sized("uniform"),
    "torch.randn": _sized("normal"),
    "torch.rand_like": _alike("uniform"),
    "torch.randn_like": _alike("normal"),
    "torch.bernoulli": _bernoulli,
    "torch.Tensor.bernoulli": _bernoulli,
    "torch.randint": _randint,
    "torch.normal": _normal,
    "torch.multinomial": _multinomial,
    "torch.Tensor.multinomial": _multinomial,
}
