"""Calls that ask torch for gradients while a program is traced: refused, as there is no graph to
ask yet.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.capture.own_gradients import own_gradients, refuse_module_hook
from penstock.capture.traced_tensor import TracedTensor

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer

_REFUSED = {
    "torch.Tensor.backward": ".backward()",
    "torch.Tensor.register_hook": ".register_hook()",
    "torch.Tensor.register_post_accumulate_grad_hook": ".register_post_accumulate_grad_hook()",
    "torch.Tensor.retain_grad": ".retain_grad()",
    "torch.autograd.grad": "torch.autograd.grad",
    "torch.autograd.backward": "torch.autograd.backward",
}


def _refuse(
    used: str, tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    raise own_gradients(
        f"{used} cannot run inside a program: gradients are known only after it has run.",
        used,
        "Call it on what the program returns.",
    )


def _requires_grad(
    tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Traced values do not require gradients; who asks may be a module about to place its hooks."""
    if isinstance(args[0], TracedTensor):
        refuse_module_hook()
    return function(*args, **kwargs)


AUTOGRAD_RULES: dict[str, Callable[..., Any]] = {
    **{name: partial(_refuse, used) for name, used in _REFUSED.items()},
    "torch.Tensor.requires_grad.__get__": _requires_grad,
}
