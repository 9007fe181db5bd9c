"""What a trace depends on besides its arguments, as named values that can be compared at every
call.

These are torch's global settings, and what the function can reach (`capture/reach.py`): plain
values by value, everything else by identity; of containers and objects what lies in them, of
functions their code, of modules which they are, their class, their hooks, and which of their
parameters are one. What was found serves again as long as the same objects lie where it was found.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable
from types import NoneType
from typing import Any, NamedTuple

import torch
from torch import nn

from penstock.capture.active import state
from penstock.capture.looks import Looks, Moved
from penstock.capture.reach import Reach
from penstock.capture.worlds import dtype_name


class Guards:
    """The plain values within reach of one function."""

    def __init__(self, function: Any) -> None:
        self.function = function
        #: What was found last, and where; unknown while containers of tensors, which may be large
        #: and may be others at every call, were found only once.
        self._values: dict[str, Hashable] = {}
        self._names = frozenset[str]()
        self._known: _Known | None = None

    def values(self) -> dict[str, Hashable]:
        """Each value by the name that a user would give it; the same dict as long as all holds."""
        known, setting = self._known, _setting()
        if known is not None and known.holds(setting):
            return self._values
        self._known = None
        reach = Reach(self.function, self._names)
        self._names = reach.names
        values = {**dict(_named(setting)), **_marks(reach)}
        is_again = values == self._values
        if not is_again:
            self._values = values
        if is_again or not reach.looks.hold_tensors():
            self._known = _Known.of(setting, reach)
        return self._values


class _Known(NamedTuple):
    """What was found, and the objects that it was found in. Marks are made of objects or of which
    they are, so the same objects have the same marks.
    """

    setting: tuple[object, ...]
    looks: Looks
    #: Which objects the looks have found, and their types.
    numbers: list[int]
    types: list[type]
    #: Those whose numbers may not be given to others; of tensors, which may be large, references.
    held: list[object]
    #: References to tensors that are gone.
    gone: list[object]

    @staticmethod
    def of(setting: tuple[object, ...], reach: Reach) -> _Known:
        """What lies where it was found now."""
        objects = reach.looks.now()
        gone: list[object] = []
        held = [
            weakref.ref(item, gone.append) if isinstance(item, torch.Tensor) else item
            for item in (*objects, *reach.values.values())
        ]
        numbers, types = list(map(id, objects)), list(map(type, objects))
        return _Known(setting, reach.looks, numbers, types, held, gone)

    def holds(self, setting: tuple[object, ...]) -> bool:
        """Whether the same objects lie there still."""
        if setting != self.setting or self.gone:
            return False
        try:
            found = self.looks.now()
        except Moved:
            return False
        return list(map(id, found)) == self.numbers and list(map(type, found)) == self.types


def _setting() -> tuple[object, ...]:
    """Torch's global settings."""
    found: list[object] = [torch.get_default_dtype(), state.device]
    for device in _AUTOCASTS:
        enabled = torch.is_autocast_enabled(device)
        found += enabled, torch.get_autocast_dtype(device) if enabled else None
    return tuple(found)


#: The devices whose autocast is looked at.
_AUTOCASTS = ("cpu", "cuda")


def _named(setting: tuple[Any, ...]) -> Iterable[tuple[str, Hashable]]:
    dtype, device, *autocasts = setting
    yield "the default dtype", dtype_name(dtype)
    yield "the device", "" if device is None else str(device)
    for name, enabled, used in zip(_AUTOCASTS, autocasts[::2], autocasts[1::2], strict=True):
        yield f"autocast on {name}", (enabled, str(used) if enabled else "")


#: The types whose values are marked by themselves, and how.
_PLAIN = {kind: kind.__name__ for kind in (bool, int, str, NoneType)}

#: What else is the same where it is equal.
_EQUAL = (torch.dtype, torch.device, complex, bytes, range)


class _Same:
    """Equal to itself alone: one object, which is not kept for it."""

    __slots__ = ("_number", "_reference", "_text")

    def __init__(self, value: Any) -> None:
        self._number = id(value)
        self._text = getattr(value, "__qualname__", "") or f"a {type(value).__name__}"
        try:
            self._reference: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self._reference = lambda: value

    def __eq__(self, other: object) -> bool:
        value = self._reference()
        return isinstance(other, _Same) and value is not None and value is other._reference()

    def __hash__(self) -> int:
        return self._number

    def __repr__(self) -> str:
        return self._text


class _Equal:
    """Equal to objects of its class that say so."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Equal) or type(self._value) is not type(other._value):
            return False
        try:
            return self._value is other._value or bool(self._value == other._value)
        except Exception:  # they hold tensors, say
            return False

    def __hash__(self) -> int:
        return hash(type(self._value))

    def __repr__(self) -> str:
        return f"a {type(self._value).__name__}"


def _marks(reach: Reach) -> dict[str, Hashable]:
    found: dict[str, Hashable] = {}
    for path, module in reach.modules:
        found[f"the module {path}"] = _Same(module), _Same(type(module)), tuple(module._modules)
        found[f"{path}.training"] = _mark(module.training)
    for name, value in reach.values.items():
        if not isinstance(value, nn.Module):
            is_opened = id(value) in reach.opened
            if id(value) in reach.replaceable and not is_opened:
                found[name] = _Equal(value)
            else:
                found[name] = _mark(value, is_opened=is_opened)
    found["shared parameters"] = _ties(reach.modules)
    return found


def _mark(value: Any, *, is_opened: bool = False) -> Hashable:
    """Equal as long as a trace may take the value for the same."""
    kind = type(value)
    if kind in _PLAIN:
        return _PLAIN[kind], value
    if isinstance(value, float):
        return kind.__name__, repr(value)
    if isinstance(value, _EQUAL):
        return kind.__name__, value
    if is_opened:
        keys = tuple(map(repr, value)) if isinstance(value, dict) else len(value)
        return _Same(kind), keys
    return _Same(value)


def _ties(modules: Iterable[tuple[str, nn.Module]]) -> Hashable:
    """Which parameters are one tensor, by the order in which they come."""
    first: dict[int, int] = {}
    tensors = [tensor for _, module in modules for tensor in module._parameters.values()]
    return tuple(first.setdefault(id(tensor), number) for number, tensor in enumerate(tensors))
