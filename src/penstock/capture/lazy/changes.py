"""Changes in place, as new values: a tensor that is changed is bound to what it then holds.

Tensors that share memory form a family: a root and its views. A change to one of them is written
through to the root, and every view of the family that is still alive is made again. Real tensors
are changed for real: after everything that earlier instances do to them, and with their old
contents kept for the steps that have read them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache
from sys import getrefcount
from typing import TYPE_CHECKING, Any

import torch

from penstock.calls.own_functions import set_item, write_part
from penstock.calls.structure import flatten
from penstock.calls.torch_names import name_of
from penstock.capture.in_place import RESHAPING, Change, in_place_form, takes_inplace
from penstock.capture.lazy import factories
from penstock.capture.lazy.reads import known_index
from penstock.capture.lazy.tensor import LazyTensor
from penstock.errors import MutationError, RecordedTensorError, report
from penstock.ir.program import TorchCall

if TYPE_CHECKING:
    from penstock.capture.lazy.scope import Scope


_FILLS = frozenset(["torch.Tensor.fill_", "torch.Tensor.zero_"])

#: References to a tensor that only its scope holds, as `getrefcount` counts them for a call.
_UNUSED_REFERENCES = 2


@cache
def may_change(name: str, function: Callable[..., Any]) -> bool:
    """Whether a call of that name can change a tensor."""
    last = name.rpartition(".")[2]
    if last.startswith("__"):
        return last.startswith("__i") and last not in ("__index__", "__int__", "__invert__")
    if last.endswith("_") and not last.endswith("__"):
        return True
    return takes_inplace(function)


def change_in_place(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call that changes one of its tensors, if it does."""
    name = name_of(function)
    target = kwargs.get("out", args[0] if args else kwargs.get("input"))
    if not isinstance(target, LazyTensor):
        return _change_real(scope, function, args, kwargs, target)
    if name in _FILLS and not kwargs:
        number = args[1] if len(args) > 1 else 0
        made = factories.fill(scope, target, number) if type(number) in (int, float) else None
        if made is not None:
            return made
    try:
        change = in_place_form(name, function, args, kwargs)
    except MutationError:
        return _change_by_contents(scope, function, args, kwargs, target)
    if change is None:
        return scope.record(function, args, kwargs)
    _check_owner(target)
    contents = _new_contents(scope, change)
    keeps_shape = "out" not in kwargs and name.rpartition(".")[2] not in RESHAPING
    if keeps_shape and contents.shape != target.shape:
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape "
            f"{list(contents.shape)}"
        )
    return assign(scope, target, contents)


def write_item(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """`x[i] = v`."""
    target, index, value = args
    if not isinstance(target, LazyTensor):
        _change_real(scope, function, args, kwargs, target)
        return
    items = index if isinstance(index, tuple) else (index,)
    known = tuple(known_index(scope, item) for item in items)
    call = (target, known if isinstance(index, tuple) else known[0], value)
    _check_owner(target)
    assign(scope, target, scope.record(set_item, call, {}))


def _new_contents(scope: Scope, change: Change) -> LazyTensor:
    made = scope.call(change.function, change.args, change.kwargs)
    old = change.target
    if not isinstance(made, LazyTensor):
        made = scope.wrap(made)
    if made.dtype != old.dtype:
        made = scope.call(torch.Tensor.to, (made, old.dtype), {})
    return made  # type: ignore[no-any-return]


def assign(
    scope: Scope, target: LazyTensor, contents: LazyTensor, *, is_silent: bool = False
) -> LazyTensor:
    """Bind a tensor, and all that share its memory, to new contents.

    A silent change, through a detached name, leaves gradients as if nothing had changed.
    """
    view = target._view
    if view is not None:
        parent, step, leaf = view
        if step.call is None:
            raise _cannot_write(target)
        is_silent = parent._kind.requires_grad and not target._kind.requires_grad
        assign(
            scope, parent, _written(scope, parent, contents, step.call, leaf), is_silent=is_silent
        )
        return target
    if target._kind.requires_grad and (is_silent or not torch.is_grad_enabled()):
        contents = _with_history(scope, target, contents)
    grad = contents._kind.requires_grad
    kind = target._kind if target.shape == contents.shape else contents._kind
    target._value, target._kind = contents._value, kind.with_grad(grad)
    _make_views_again(scope, target)
    return target


def _written(
    scope: Scope, parent: LazyTensor, contents: LazyTensor, call: TorchCall, leaf: int
) -> LazyTensor:
    described = (call.name, call.args, call.kwargs, leaf)
    made: LazyTensor = scope.record(write_part, (parent, contents, *described), {})
    return made


def _with_history(scope: Scope, target: LazyTensor, contents: LazyTensor) -> LazyTensor:
    """The contents, with gradients that flow as through the tensor before it was changed."""
    with torch.enable_grad():
        nothing = scope.call(torch.Tensor.sub, (target, target.detach()), {})
        made: LazyTensor = scope.call(torch.Tensor.add, (nothing, contents.detach()), {})
    return made


def _make_views_again(scope: Scope, root: LazyTensor) -> None:
    if root._shares is None:
        return
    used = [ref for ref in root._shares if getrefcount(ref()) > _UNUSED_REFERENCES]
    alive = [lazy for reference in used if (lazy := reference()) is not None]
    for lazy in alive:
        assert lazy._view is not None
        parent, step, leaf = lazy._view
        if step.call is None:
            raise _cannot_write(lazy)
        made = scope.view_again(step.call, parent, leaf)
        lazy._value, lazy._kind = made._value, made._kind
    root._shares = [weakref.ref(lazy) for lazy in alive]


def _check_owner(target: LazyTensor) -> None:
    """Raise torch's own errors where a change is not allowed."""
    kind = target._kind
    if target._is_own_leaf and kind.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            "a leaf Variable that requires grad is being used in an in-place operation."
        )
    if any(not step and size > 1 for step, size in zip(kind.stride, kind.shape, strict=True)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            "single memory location. Please clone() the tensor before performing the operation."
        )


def _change_by_contents(
    scope: Scope, function: Any, args: tuple[Any, ...], kwargs: Any, target: LazyTensor
) -> LazyTensor:
    """A change that has no other form: made to a copy of the contents."""
    (contents,) = scope.contents([target])
    changed = function(contents.clone(), *args[1:], **kwargs)
    return assign(scope, target, scope.wrap(changed))


def _change_real(
    scope: Scope, function: Any, args: tuple[Any, ...], kwargs: Any, target: Any
) -> Any:
    """A change to a tensor from outside."""
    leaves, _ = flatten((args, kwargs))
    if not isinstance(target, torch.Tensor) and not isinstance(target, list | tuple):
        return scope.record(function, args, kwargs)
    is_inplace = in_place_name(function, args, kwargs)
    if not is_inplace:
        return scope.record(function, args, kwargs)
    scope.wait_for_turn()
    for tensor in (item for item in leaves if isinstance(item, torch.Tensor)):
        if not isinstance(tensor, LazyTensor):
            scope.keep_contents(tensor)
    if not any(isinstance(leaf, LazyTensor) for leaf in leaves):
        return function(*args, **kwargs)
    scope.compute_now()
    return scope.call_on_real(function, args, kwargs)


def in_place_name(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether this very call changes a tensor."""
    name = name_of(function)
    last = name.rpartition(".")[2]
    if "out" in kwargs or name == "torch.Tensor.__setitem__" or last.endswith("_"):
        return True
    return in_place_form(name, function, args, kwargs) is not None


def ask_for_gradients(
    scope: Scope, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`x.requires_grad_()`."""
    tensor = args[0]
    if not isinstance(tensor, LazyTensor):
        return function(*args, **kwargs)
    wanted = bool(args[1] if len(args) > 1 else kwargs.get("requires_grad", True))
    if not wanted and tensor._kind.requires_grad and not tensor._is_own_leaf:
        raise RuntimeError(
            "you can only change requires_grad flags of leaf variables. If you want to use a "
            "computed variable in a subgraph that doesn't require differentiation use "
            "var_no_grad = var.detach()."
        )
    if wanted and not tensor._kind.requires_grad and tensor._root is not None:
        with torch.no_grad():  # a leaf has a value of its own, which no gradient leaves
            tensor._value = scope.call(torch.clone, (tensor,), {})._value
    if wanted != tensor._kind.requires_grad:
        tensor._kind, tensor._is_own_leaf = tensor._kind.with_grad(wanted), wanted
    return tensor


def set_data(scope: Scope, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """`x.data = y`."""
    target, source = args
    if not isinstance(target, LazyTensor):
        scope.keep_contents(target)
        real = scope.realise([source])[0].detach() if isinstance(source, LazyTensor) else source
        function(target, real)
        return
    made: Any = source.detach() if isinstance(source, LazyTensor) else scope.wrap(source.detach())
    target._value = made._value
    target._kind = made._kind.with_grad(target._kind.requires_grad)


def _cannot_write(target: LazyTensor) -> RecordedTensorError:
    return RecordedTensorError(
        report(
            "A view of a recorded tensor cannot be changed in place here.",
            facts=[("view", str(target._kind)), ("of", "a tensor that gradients flow through")],
            todo="Change the tensor itself, or use the form that makes a new tensor.",
        )
    )


CHANGES: dict[str, Any] = {
    "torch.Tensor.__setitem__": write_item,
    "torch.Tensor.requires_grad_": ask_for_gradients,
    "torch.Tensor.requires_grad.__set__": ask_for_gradients,
    "torch.Tensor.data.__set__": set_data,
}
