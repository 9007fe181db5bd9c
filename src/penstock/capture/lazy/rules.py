"""Which torch calls are not simply recorded, and what happens instead.

The rule of a function is found once, by its name. Calls that give a Python value read contents;
calls that change a tensor bind it anew; calls that make tensors from numbers make constants; random
calls draw under keys; calls about gradients have errors of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from penstock.calls.structure import flatten
from penstock.calls.torch_names import name_of, resolve
from penstock.capture.lazy import changes, factories, reads, refusals
from penstock.capture.lazy.library import Key
from penstock.capture.lazy.tensor import LazyTensor
from penstock.capture.random_calls import RANDOM_RULES, draw_by_rule

if TYPE_CHECKING:
    from penstock.capture.lazy.scope import Scope

Rule = Callable[["Scope", Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


#: The rules of functions that were called before; None for those that are simply recorded.
known_rules: dict[Callable[..., Any], Rule | None] = {}


def rule_for(function: Callable[..., Any]) -> Rule | None:
    """The rule of a function; None for calls that are simply recorded."""
    rule = known_rules[function] = _find_rule(function)
    return rule


def _find_rule(function: Callable[..., Any]) -> Rule | None:
    name = name_of(function)
    if name in RANDOM_RULES:
        return draw
    if name in _RULES:
        return _RULES[name]
    if changes.may_change(name, function):
        return changes.change_in_place
    return None


def run_as_it_is(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Settings of torch, and what concerns no contents."""
    return function(*args, **kwargs)


def take_view(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A view of a real tensor is real too: what is written to it, is written to the tensor."""
    tensor = args[0] if args else kwargs.get("input", kwargs.get("self"))
    if type(tensor) is LazyTensor or type(tensor) is nn.Parameter:
        return scope.record(function, args, kwargs)
    if any(isinstance(leaf, LazyTensor) for leaf in flatten((args[1:], kwargs))[0]):
        return scope.record(function, args, kwargs)
    return function(*args, **kwargs)


def deep_copy(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`copy.deepcopy(x)`."""
    tensor = args[0]
    if not isinstance(tensor, LazyTensor):
        return function(*args, **kwargs)
    if not tensor.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol at the moment."
        )
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def set_grad_enabled(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Code that asks for gradients where nobody else does needs a tape."""
    scope.is_taped |= bool(args[0] if args else kwargs.get("enabled"))
    return function(*args, **kwargs)


def update_statistics(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Normalisation that updates running statistics: in the order of a plain loop."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    is_training = given.get("training", given.get("use_input_stats"))
    if not is_training or given.get("running_mean") is None:
        return scope.record(function, args, kwargs)
    scope.note_unrecorded(function, None)
    scope.wait_for_turn()
    for name in ("running_mean", "running_var"):
        scope.keep_contents(given[name])
    return scope.call_on_real(function, args, kwargs)


def draw(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A random call."""
    return draw_by_rule(RecordedDraws(scope), name_of(function), function, args, kwargs)


class RecordedDraws:
    """Draws that are recorded, each under the next key of its instance."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def draw(self, kind: str, device: torch.device, *args: Any) -> torch.Tensor:
        """Record the draw."""
        function = resolve(f"penstock.random.{kind}")
        made: torch.Tensor = self._scope.record(function, (Key(), *args), {})
        return made

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the call as it is."""
        return self._scope.record(function, args, kwargs)

    def watching(self) -> AbstractContextManager[Any]:
        """Torch functions inside are recorded again."""
        return self._scope.mode


_SETTINGS = [
    "torch.manual_seed",
    "torch.set_default_dtype",
    "torch.get_default_device",
    "torch.set_default_device",
]

_VIEWS = [
    *("view", "reshape", "unsqueeze", "squeeze", "t", "transpose", "permute", "expand", "flatten"),
    *("narrow", "select", "chunk", "split", "unbind", "detach", "view_as", "expand_as", "movedim"),
    *("swapaxes", "unflatten", "diagonal", "tensor_split", "split_with_sizes", "contiguous"),
]

_RULES: dict[str, Rule] = {
    **{f"{place}.{name}": take_view for name in _VIEWS for place in ("torch", "torch.Tensor")},
    "torch.functional.split": take_view,
    **{f"torch.Tensor.{name}.__get__": take_view for name in ("T", "mT", "data")},
    **dict.fromkeys(_SETTINGS, run_as_it_is),
    **dict.fromkeys(("torch._C._set_grad_enabled", "torch.set_grad_enabled"), set_grad_enabled),
    "torch.Tensor.__deepcopy__": deep_copy,
    "torch.nn.functional.batch_norm": update_statistics,
    "torch.nn.functional.instance_norm": update_statistics,
    **reads.READS,
    **changes.CHANGES,
    **factories.FACTORIES,
    **refusals.REFUSALS,
}
