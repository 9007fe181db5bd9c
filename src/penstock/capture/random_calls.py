"""Random operations, recorded as functions of a key.

Each draws from its own `RandomKey`, so that results do not depend on how a program is batched. The numbers come from
`run.random_bits`; here they have types only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from penstock.capture.recording import record, record_named
from penstock.capture.source import user_source
from penstock.capture.structure import flatten
from penstock.capture.tensor_rules import shape_of
from penstock.capture.traced_tensor import TracedTensor
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
    drawn: TracedTensor = record_named(
        tracer, f"penstock.random.{kind}", typed, (key, *args), {}
    )
    return drawn


def _numbers(
    tracer: Tracer, kind: str, shape: Any, dtype: torch.dtype | None = None
) -> TracedTensor:
    """Random numbers of that kind ("uniform", "normal") and shape."""

    def typed(key: torch.Tensor, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    return draw(tracer, kind, typed, tuple(shape), dtype or torch.get_default_dtype())


def _dropout(tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    bound = inspect.signature(functional.dropout).bind(*args, **kwargs)
    bound.apply_defaults()
    tensor = tracer.tensor(bound.arguments["input"])
    p = bound.arguments["p"]
    if not bound.arguments["training"] or p == 0:
        return tensor
    return draw(tracer, "dropout", lambda key, source, p: torch.empty_like(source), tensor, float(p))


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
    noise = record(tracer, torch.Tensor.log1p, (record(tracer, torch.Tensor.neg, (draws,), {}),), {})
    noise = record(tracer, torch.div, (noise, weights), {})
    if is_repeated:
        best = record(tracer, torch.Tensor.argmax, (noise, -1), {})
        return record(tracer, torch.Tensor.movedim, (best, 0, -1), {})
    return record(tracer, torch.Tensor.topk, (noise, count), {}).indices


def _floating(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


RANDOM_RULES: dict[str, Callable[..., Any]] = {
    "torch.nn.functional.dropout": _dropout,
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
