"""Functions that ask before they run: the call of every module, and candidates of the user's own.

Patches are in place while any scope is open, in the whole process; they pass calls through on
threads without a scope. They are counted, and the last scope that closes undoes them. What somebody
else has put in the place of a patch meanwhile stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import getattr_static
from types import CellType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as torch_modules

from penstock.capture.lazy.active import active_scope
from penstock.capture.lazy.active_calls import CallHook, asking, state
from penstock.capture.lazy.guarded_values import ABSENT, ORIGINAL
from penstock.capture.lazy.module_changes import changes, replacements
from penstock.capture.lazy.module_facts import has_hooks
from penstock.capture.lazy.purity import MARK
from penstock.capture.lazy.tensor import LazyTensor
from penstock.capture.lazy.unit_traces import MODULE_CALL
from penstock.capture.lazy.unit_tracing import without_recording
from penstock.run.batched.functorch_adapter import TRACING


class Place(NamedTuple):
    """Where a function is found by name: in a class, a dict of globals, or a closure cell."""

    holder: Any
    name: str

    def read(self) -> Any:
        """What is there."""
        if isinstance(self.holder, dict):
            return self.holder.get(self.name, ABSENT)
        if isinstance(self.holder, CellType):
            return self.holder.cell_contents
        return vars(self.holder).get(self.name, ABSENT)

    def write(self, value: Any) -> None:
        """Put something there."""
        if isinstance(self.holder, dict):
            self.holder[self.name] = value
        elif isinstance(self.holder, CellType):
            self.holder.cell_contents = value
        else:
            setattr(self.holder, self.name, value)


class _Patch:
    """One function that is replaced while somebody needs it."""

    __slots__ = ("original", "place", "users", "wrapper")

    def __init__(self, place: Place, wrapper: Any) -> None:
        self.place, self.wrapper = place, wrapper
        self.original = place.read()
        self.users = 0

    def undo(self) -> None:
        if self.place.read() is self.wrapper:
            self.place.write(self.original)


class Patches:
    """All patches of the process."""

    def __init__(self) -> None:
        #: Torch patches the call of modules itself while it traces.
        self._lock = TRACING
        self._patches: dict[tuple[int, str], _Patch] = {}

    def acquire(self, places: Iterable[Place] = ()) -> list[_Patch]:
        """Put the patches of a scope in place; hand the result to `release`, whatever happens."""
        taken: list[_Patch] = []
        with self._lock:
            try:
                for place, make in (*_standing(), *((place, asking_first) for place in places)):
                    taken.append(self._take(place, make))
            except BaseException:
                self.release(taken)
                raise
        changes.add()
        return taken

    def release(self, taken: list[_Patch]) -> None:
        """Undo the patches that no other scope needs."""
        with self._lock:
            for patch in reversed(taken):
                patch.users -= 1
                if patch.users == 0:
                    del self._patches[id(patch.place.holder), patch.place.name]
                    patch.undo()

    def _take(self, place: Place, make: Callable[[Place], Any]) -> _Patch:
        key = (id(place.holder), place.name)
        patch = self._patches.get(key)
        if patch is None:
            patch = self._patches[key] = _Patch(place, make(place))
            place.write(patch.wrapper)
        patch.users += 1
        return patch

    @property
    def count(self) -> int:
        """How many functions are replaced now."""
        return len(self._patches)


patches = Patches()


@contextmanager
def patched(hook: CallHook, places: Iterable[Place] = ()) -> Iterator[None]:
    """Ask `hook` about calls on this thread, until the block ends."""
    taken = patches.acquire(places)
    try:
        with asking(hook):
            yield
    finally:
        patches.release(taken)


def _standing() -> Iterator[tuple[Place, Callable[[Place], Any]]]:
    """The patches that every scope needs."""
    yield Place(nn.Module, "__call__"), lambda place: _module_call(place.read())
    yield Place(torch.autograd.Function, "apply"), lambda place: _custom_function(place.read())
    for holder, name, wrapper in replacements():
        yield Place(holder, name), _giving(wrapper)


def _giving(wrapper: Any) -> Callable[[Place], Any]:
    return lambda place: wrapper


def _module_call(original: Callable[..., Any]) -> Callable[..., Any]:
    # torch's hooks for all modules, each kind in a dict that stays the same
    one, two = torch_modules._global_forward_hooks, torch_modules._global_forward_pre_hooks
    three, four = torch_modules._global_backward_hooks, torch_modules._global_backward_pre_hooks

    @wraps(original)
    def call(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        hook = state.hook
        if hook is None or has_hooks(self) or one or two or three or four:
            return original(self, *args, **kwargs)
        is_handled, result = hook.on_call(MODULE_CALL, self, args, kwargs)
        return result if is_handled else original(self, *args, **kwargs)

    return call


def _custom_function(original: Any) -> Any:
    """`apply` of the user's own differentiable functions: made for real, on ordinary tensors."""

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        scope = active_scope()
        bound = original.__get__(None, cls)
        if scope is None or not any(isinstance(item, LazyTensor) for item in args):
            return bound(*args, **kwargs)
        with without_recording():
            scope.note_unrecorded(cls, None)
            return scope.call_on_real(bound, args, kwargs)

    return classmethod(apply)


def asking_first(place: Place) -> Callable[..., Any]:
    """The function at a place of the user's, asking before it runs."""
    original = place.read()
    assert isinstance(original, FunctionType)
    wrapper = _method(original) if isinstance(place.holder, type) else _function(original)
    wrapper.__dict__[ORIGINAL] = original
    return wrapper


def _method(original: FunctionType) -> Callable[..., Any]:
    @wraps(original)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        hook = state.hook
        if hook is not None:
            is_handled, result = hook.on_call(original, self, args, kwargs)
            if is_handled:
                return result
        return original(self, *args, **kwargs)

    return call


def _function(original: FunctionType) -> Callable[..., Any]:
    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        hook = state.hook
        if hook is not None:
            is_handled, result = hook.on_call(original, None, args, kwargs)
            if is_handled:
                return result
        return original(*args, **kwargs)

    return call


def mark_unit(function: FunctionType) -> Callable[..., Any]:
    """The function, always asking before it runs: what `@ps.unit` makes.

    Whether it is a method is seen when it is called: on an object whose class has it by its name.
    """
    kinds: dict[type, bool] = {}

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        hook = state.hook
        if hook is None:
            return function(*args, **kwargs)
        is_method = False
        if args:
            kind = type(args[0])
            if kind not in kinds:
                kinds[kind] = getattr_static(kind, function.__name__, None) is call
            is_method = kinds[kind]
        owner, rest = (args[0], args[1:]) if is_method else (None, args)
        is_handled, result = hook.on_call(function, owner, rest, kwargs)
        return result if is_handled else function(*args, **kwargs)

    function.__dict__[MARK] = True
    call.__dict__[ORIGINAL] = function
    return call
