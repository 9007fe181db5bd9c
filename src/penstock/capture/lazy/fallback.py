"""Calls that cannot be recorded: made for real, one instance at a time, on ordinary tensors.

That is right for any call, gradients included, and slow: each waits for its operands. Calls with
side effects on what instances share wait, too, until all earlier instances have ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from penstock.calls.structure import flatten, unflatten
from penstock.capture.lazy.tensor import LazyTensor

if TYPE_CHECKING:
    from penstock.capture.lazy.scope import Scope


def call_for_real(
    scope: Scope,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    reason: Exception | None = None,
) -> Any:
    """The call on ordinary tensors; `reason` is why it was not recorded."""
    scope.note_unrecorded(function, reason)
    if reason is not None and not isinstance(reason, _EXPECTED):
        _raise_if_wrong(scope, function, args, kwargs, reason)
    return call_on_real(scope, function, args, kwargs)


_EXPECTED = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
    NotImplementedError,
)


def _raise_if_wrong(
    scope: Scope, function: Any, args: tuple[Any, ...], kwargs: Any, reason: Exception
) -> None:
    """Raise the error of a call that fails on tensors of these shapes, whatever they hold."""
    leaves, structure = flatten((args, kwargs))
    blanks = [_blank(leaf) if isinstance(leaf, LazyTensor) else leaf for leaf in leaves]
    blank_args, blank_kwargs = unflatten(structure, blanks)
    try:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            function(*blank_args, **blank_kwargs)
    except Exception as error:
        if type(error) is type(reason) or isinstance(error, TypeError | ValueError | IndexError):
            raise error from None
        if isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError):
            raise error from None


def _blank(lazy: LazyTensor) -> torch.Tensor:
    kind = lazy._kind
    blank = torch.empty_strided(kind.shape, kind.stride, dtype=kind.dtype, device=kind.device)
    return blank.zero_()


def call_on_real(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The call with every recorded tensor made an ordinary one."""
    leaves, structure = flatten((args, kwargs))
    lazies = [leaf for leaf in leaves if isinstance(leaf, LazyTensor)]
    real = iter(scope.realise(lazies) if lazies else ())
    filled = [next(real) if isinstance(leaf, LazyTensor) else leaf for leaf in leaves]
    real_args, real_kwargs = unflatten(structure, filled)
    returned = function(*real_args, **real_kwargs)
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return returned
    made, made_structure = flatten(returned)
    return unflatten(made_structure, [_recorded(scope, leaf, filled) for leaf in made])


def _recorded(scope: Scope, leaf: Any, given: list[Any]) -> Any:
    """Tensors that the call made go on being recorded; those it was given come back as they are."""
    if not isinstance(leaf, torch.Tensor) or any(leaf is item for item in given):
        return leaf
    return scope.wrap(leaf)
