"""Calls about gradients, which have no meaning on recorded tensors while their scope is open."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.calls.structure import flatten
from penstock.calls.torch_names import name_of
from penstock.capture.lazy.tensor import LazyTensor
from penstock.capture.location import user_line
from penstock.errors import RecordedTensorError, report

if TYPE_CHECKING:
    from penstock.capture.lazy.scope import Scope


def refuse(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Raise if the call concerns recorded tensors."""
    leaves, _ = flatten((args, kwargs))
    if not any(isinstance(leaf, LazyTensor) for leaf in leaves):
        return function(*args, **kwargs)
    if scope.waits is None and name_of(function) in _BACKWARD:
        return scope.call_on_real(function, args, kwargs)
    name = name_of(function).rpartition(".")[2]
    raise RecordedTensorError(
        report(
            f"{name}: gradients of recorded tensors are there once the map is over.",
            where=user_line(),
            facts=[("call", name), ("tensor", "recorded, not yet computed")],
            todo="Return the loss from the mapped function, and call backward() on the results.",
        )
    )


_BACKWARD = ("torch.Tensor.backward", "torch.autograd.backward", "torch.autograd.grad")


def no_gradient(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`x.grad`, `x.grad_fn`: a recorded tensor has none yet."""
    return None if isinstance(args[0], LazyTensor) else function(*args, **kwargs)


def version(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`x._version`."""
    return 0 if isinstance(args[0], LazyTensor) else function(*args, **kwargs)


REFUSALS: dict[str, Any] = {
    **dict.fromkeys((*_BACKWARD, "torch.Tensor.register_hook", "torch.Tensor.retain_grad"), refuse),
    "torch.Tensor.grad.__get__": no_gradient,
    "torch.Tensor.grad_fn.__get__": no_gradient,
    "torch.Tensor._version.__get__": version,
}
