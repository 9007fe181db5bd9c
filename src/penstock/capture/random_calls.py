"""Random operations as functions of a key.

Each draws under a key of its own, so that results do not depend on how a program is run. One table
of rules, in plain torch, serves traces and plain Python; they differ in where a draw comes from,
which is a `Draws`. The numbers themselves come from `run.random_bits`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any, Protocol

import torch

from penstock.calls.structure import flatten
from penstock.calls.torch_names import name_of
from penstock.capture.location import user_line
from penstock.errors import ArgumentError, report


class Draws(Protocol):
    """Where random numbers come from."""

    def draw(self, kind: str, device: torch.device, *args: Any) -> torch.Tensor:
        """The random function of that name on `args`, under the next key."""

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call itself, not the rule for it."""

    def watching(self) -> AbstractContextManager[Any]:
        """Torch functions called inside are seen, and random ones follow their rules."""


#: What a random function gives for a call, its arguments in tuple and dict.
Rule = Callable[[Draws, Any, tuple[Any, ...], dict[str, Any]], Any]


def draw_by_rule(
    draws: Draws, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What the random function of that name gives."""
    if kwargs.get("generator") is not None:
        raise _not_counter_based(f"{name.rpartition('.')[2]} with a generator")
    return RANDOM_RULES[name](draws, function, args, kwargs)


def _dropout(draws: Draws, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = ("input", "p", "training", "inplace")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    tensor, p = given["input"], float(given.get("p", 0.5))
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not given.get("training", given.get("train", True)) or p == 0:
        return tensor
    dropped = draws.draw("dropout", tensor.device, tensor, p)
    return tensor.copy_(dropped) if given.get("inplace") else dropped


def _attention(draws: Draws, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Attention with dropout on its weights is written out; without, it is one call."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if not given.get("dropout_p"):
        return draws.call(function, args, kwargs)
    if given.get("is_causal") or given.get("enable_gqa"):
        raise _not_counter_based("scaled_dot_product_attention with is_causal or enable_gqa")
    query, key, value = (given[name] for name in names[:3])
    scale = given.get("scale") or query.shape[-1] ** -0.5
    scores = torch.matmul(query, key.transpose(-2, -1)) * scale
    mask = given.get("attn_mask")
    if mask is not None and mask.dtype is torch.bool:
        scores = scores.masked_fill(mask.logical_not(), -math.inf)
    elif mask is not None:
        scores = scores + mask
    weights = _dropout(draws, function, (scores.softmax(-1), given["dropout_p"]), {})
    return torch.matmul(weights, value)


def _written_out(name: str, position: int) -> Rule:
    """Run the Python body of a composite function where it draws random numbers inside."""

    def rule(draws: Draws, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        p = kwargs.get(name, args[position] if len(args) > position else 0.0)
        if not p or not kwargs.get("training", True):
            return draws.call(function, args, kwargs)
        return _written_out_always(draws, function, args, kwargs)

    return rule


def _written_out_always(
    draws: Draws, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    plain = dict.fromkeys(("has_torch_function", "has_torch_function_unary"), lambda *_: False)
    body = FunctionType(function.__code__, {**function.__globals__, **plain})
    body.__defaults__, body.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    with draws.watching():
        return body(*args, **kwargs)


def _refused(name: str) -> Rule:
    def rule(draws: Draws, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _is_training(function, args, kwargs):
            raise _not_counter_based(name)
        return draws.call(function, args, kwargs)

    return rule


def _recurrent(draws: Draws, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The library's own LSTM, GRU or RNN, which draws where there is dropout between layers."""
    is_packed = not isinstance(args[2], (list, tuple))
    layers, dropout, is_training = args[5:8] if is_packed else args[4:7]
    if layers > 1 and dropout and is_training:
        raise _not_counter_based(f"{function.__name__} with dropout between its layers")
    return draws.call(function, args, kwargs)


def _is_training(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """What the call says about training; functions that do not ask always draw."""
    if not isinstance(function, FunctionType):
        return True
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bool(bound.arguments.get("training", True))


def _not_counter_based(name: str) -> ArgumentError:
    return ArgumentError(
        report(
            f"{name}: this random operation has no form that is independent of batching.",
            where=user_line(),
            facts=[
                ("call", name),
                ("available", "dropout, rand, randn, randint, bernoulli, normal, multinomial"),
            ],
            todo="Build it from torch.rand_like or torch.randn_like, or draw outside the program.",
        )
    )


def _numbers(
    draws: Draws,
    kind: str,
    shape: Any,
    options: dict[str, Any],
    like: torch.Tensor | None = None,
) -> torch.Tensor:
    """Random numbers of that kind ("uniform", "normal"), with the dtype and device of `like` where
    the options do not say.
    """
    dtype = torch.get_default_dtype() if like is None else like.dtype
    device = torch.get_default_device() if like is None else like.device
    dtype, device = options.get("dtype") or dtype, options.get("device") or device
    made = draws.draw(kind, _placed(device), tuple(shape), dtype)
    return made.requires_grad_() if options.get("requires_grad") else made


def _placed(device: Any) -> torch.device:
    """The device with its number."""
    found: torch.device = torch.device(device)
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found


def _sized(kind: str) -> Rule:
    def rule(draws: Draws, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        shape, _ = flatten(tuple(kwargs.get("size", args)))
        return _numbers(draws, kind, shape, kwargs)

    return rule


def _alike(kind: str) -> Rule:
    def rule(draws: Draws, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0] if args else kwargs["input"]
        return _numbers(draws, kind, tensor.shape, kwargs, tensor)

    return rule


def _bernoulli(draws: Draws, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0] if args else kwargs["input"]
    p = kwargs.get("p", args[1] if len(args) > 1 else tensor)
    options = {"dtype": _floating(tensor.dtype)}
    numbers = _numbers(draws, "uniform", tensor.shape, options, tensor)
    return (numbers < p).to(tensor.dtype)


def _randint(draws: Draws, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    parts = list(args)
    size = kwargs["size"] if "size" in kwargs else parts.pop()
    high = kwargs["high"] if "high" in kwargs else parts.pop()
    low = kwargs.get("low", parts.pop() if parts else 0)
    device = _placed(kwargs.get("device") or torch.get_default_device())
    made = draws.draw("randint", device, low, high, tuple(size))
    dtype = kwargs.get("dtype")
    return made if dtype is None else made.to(dtype)


def _normal(draws: Draws, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = {**dict(zip(("mean", "std", "size"), args, strict=False)), **kwargs}
    mean, std = given.get("mean", 0.0), given.get("std", 1.0)
    if isinstance(mean, torch.Tensor) or isinstance(std, torch.Tensor):
        like: torch.Tensor = mean + std  # what both are broadcast to
        return _numbers(draws, "normal", like.shape, {}, like) * std + mean
    return _numbers(draws, "normal", given["size"], given) * std + mean


def _multinomial(draws: Draws, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Each weight is the rate of an exponential waiting time; the shortest ones are drawn."""
    given = dict(zip(("input", "num_samples", "replacement"), args, strict=False)) | kwargs
    weights, count = given["input"], given["num_samples"]
    is_repeated = given.get("replacement", False) and count > 1
    shape = (count, *weights.shape) if is_repeated else weights.shape
    options = {"dtype": _floating(weights.dtype)}
    times = torch.log1p(-_numbers(draws, "uniform", shape, options, weights)) / weights
    if is_repeated:
        return times.argmax(-1).movedim(0, -1)
    return times.topk(count).indices


def _filled(names: tuple[str, ...], make: Callable[..., Any], kind: str = "uniform") -> Rule:
    """`x.normal_()` and its kin: `make` gives the new contents, from numbers and the arguments of
    these names.
    """

    def rule(draws: Draws, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor, given = args[0], {**dict(zip(names, args[1:], strict=False)), **kwargs}
        given.pop("generator", None)
        options = {"dtype": _floating(tensor.dtype)}
        numbers = _numbers(draws, kind, tensor.shape, options, tensor)
        return tensor.copy_(make(numbers, **given))

    return rule


def _between(u: torch.Tensor, **bounds: Any) -> Any:
    low, high = bounds.get("from", 0.0), bounds.get("to", 1.0)
    return u * (high - low) + low


def _floating(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


_WITHOUT_KEYS = [
    "alpha_dropout",
    "feature_alpha_dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "rrelu",
]

RANDOM_RULES: dict[str, Rule] = {
    "torch.nn.functional.dropout": _dropout,
    "torch.dropout": _dropout,
    "torch.nn.functional.scaled_dot_product_attention": _attention,
    "torch.nn.functional.multi_head_attention_forward": _written_out("dropout_p", 10),
    "torch.nn.functional.gumbel_softmax": _written_out_always,
    **{f"torch.nn.functional.{name}": _refused(name) for name in _WITHOUT_KEYS},
    **{f"torch.{name}": _refused(name) for name in ("randperm", "poisson", "binomial")},
    name_of(torch._standard_gamma): _refused("_standard_gamma"),
    name_of(torch._sample_dirichlet): _refused("_sample_dirichlet"),
    **{f"torch.{name}": _recurrent for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
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
    "torch.Tensor.normal_": _filled(
        ("mean", "std"), lambda z, mean=0.0, std=1.0: z * std + mean, "normal"
    ),
    "torch.Tensor.uniform_": _filled(("from", "to"), _between),
    "torch.Tensor.exponential_": _filled(("lambd",), lambda u, lambd=1.0: -torch.log1p(-u) / lambd),
    "torch.Tensor.bernoulli_": _filled(("p",), lambda u, p=0.5: u < p),
}
