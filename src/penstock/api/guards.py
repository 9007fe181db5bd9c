"""What a trace depends on besides its arguments, as named values that can be compared at every
call.

These are torch's global settings, and what the function can reach: plain values (numbers, strings,
None), tensors and functions in closure cells, globals and containers; of modules which they are,
their plain attributes, their hooks, and which of their parameters are one. Anything else is taken
to stay the same. What was found serves again as long as the same objects lie where it was found.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from operator import itemgetter
from types import BuiltinFunctionType, CodeType, FunctionType, NoneType
from typing import Any, NamedTuple

import torch
from torch import nn

from penstock.capture.active import state
from penstock.capture.captures import Look, bound_by, contents_of, is_code_carrier, reachable
from penstock.capture.worlds import dtype_name

SIMPLE_TYPES = (bool, int, float, str, NoneType)


class Guards:
    """The plain values within reach of one function."""

    def __init__(self, function: Any) -> None:
        self.function = function
        #: What was found last, if it can be told whether it still holds.
        self._known: _Known | None = None

    def values(self) -> dict[str, Hashable]:
        """Each value by the name that a user would give it; the same dict as long as all holds."""
        known, setting = self._known, _setting()
        if known is not None and known.holds(setting):
            return known.values
        looks: list[Look] = []
        found = {**dict(_named(setting)), **self._find(looks)}
        self._known = _Known.of(setting, looks, found)
        return found

    def _find(self, looks: list[Look]) -> dict[str, Hashable]:
        found: dict[str, Hashable] = {}
        seen: set[int] = set()
        for name, value in reachable(self.function, looks=looks):
            if isinstance(value, _WATCHED):
                found[name] = _mark(value)
            elif isinstance(value, nn.Module) and id(value) not in seen:
                for path, module in value.named_modules(prefix=name):
                    seen.add(id(module))
                    looks.extend(_looks_at(module))
                    found.update(_attributes(path, module))
                found[f"the parameters that {name} shares"] = _ties(value)
        return found


class _Known(NamedTuple):
    """What was found, and the objects that it was found in. Marks are made of objects or of which
    they are, so the same objects have the same marks.
    """

    values: dict[str, Hashable]
    setting: tuple[object, ...]
    looks: list[Look]
    #: Which objects the looks have found, and their types.
    numbers: list[int]
    types: list[type]
    #: Those whose numbers may not be given to others; tensors are not held.
    held: list[object]

    @staticmethod
    def of(
        setting: tuple[object, ...], looks: list[Look], values: dict[str, Hashable]
    ) -> _Known | None:
        """None where containers hold tensors, which may be large."""
        if any(isinstance(part, torch.Tensor) for look in looks for part in _listed(look)):
            return None
        objects = _found(looks)
        held = [item for item in objects if isinstance(item, _HELD) or is_code_carrier(item)]
        return _Known(
            values, setting, looks, list(map(id, objects)), list(map(type, objects)), held
        )

    def holds(self, setting: tuple[object, ...]) -> bool:
        """Whether the same objects lie there still."""
        if setting != self.setting:
            return False
        try:
            found = _found(self.looks)
        except KeyError:  # a module has lost an attribute
            return False
        return list(map(id, found)) == self.numbers and list(map(type, found)) == self.types


#: Between what two looks have found, so that nothing moves from one to the other unnoticed.
_END = object()


def _found(looks: Iterable[Look]) -> list[object]:
    found: list[object] = []
    for look in looks:
        found += look()
        found.append(_END)
    return found


def _listed(look: Look) -> Iterable[object]:
    """What a look finds that holds a list, a tuple, a dict or a partial function."""
    return look() if isinstance(look, partial) and look.func in (contents_of, bound_by) else ()


def _looks_at(module: nn.Module) -> Iterator[Look]:
    """Where marks of a module are found."""
    attributes = vars(module)
    marked = {name for name, value in attributes.items() if isinstance(value, SIMPLE_TYPES)}
    own = sorted(marked | attributes.keys() - _TORCH_OWN)
    yield partial(_parts, module, itemgetter("training", *own))
    for name in attributes.keys() - _TORCH_OWN:
        if isinstance(attributes[name], _CONTAINERS):
            yield partial(contents_of, attributes[name])


def _parts(
    module: nn.Module, find: Callable[[dict[str, Any]], tuple[object, ...]]
) -> Iterable[object]:
    """Attributes of a module and how many there are, its submodules and parameters, and how many
    hooks it has.
    """
    attributes = vars(module)
    modules, parameters = attributes["_modules"], attributes["_parameters"]
    hooks, hooks_before = attributes["_forward_hooks"], attributes["_forward_pre_hooks"]
    counts = len(attributes), len(modules), len(hooks), len(hooks_before)
    return *find(attributes), *modules.keys(), *modules.values(), *parameters.values(), *counts


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


_FUNCTIONS = (FunctionType, BuiltinFunctionType)
_CONTAINERS = (list, tuple, dict)

#: What is compared from call to call.
_WATCHED = (*SIMPLE_TYPES, torch.Tensor, *_FUNCTIONS)

#: What is held as long as it is known by its number; containers are held by those who look there.
_HELD = (*SIMPLE_TYPES, *_FUNCTIONS, CodeType, nn.Module)


#: The types whose values are marked by themselves, and how.
_PLAIN = {kind: kind.__name__ for kind in (bool, int, str, NoneType)}


def _mark(value: Any) -> Hashable:
    """Equal as long as a trace may take the value for the same."""
    if isinstance(value, float):
        return "float", repr(value)
    if isinstance(value, SIMPLE_TYPES):
        return type(value).__name__, value
    return type(value).__name__, id(value)


def _attributes(path: str, module: nn.Module) -> Iterator[tuple[str, Hashable]]:
    yield f"the module {path}", id(module)
    yield f"the hooks of {path}", (len(module._forward_hooks), len(module._forward_pre_hooks))
    for name, value in vars(module).items():
        if type(value) in _PLAIN:
            yield f"{path}.{name}", (_PLAIN[type(value)], value)
        elif isinstance(value, SIMPLE_TYPES):
            yield f"{path}.{name}", _mark(value)
        elif name in _TORCH_OWN:
            continue
        elif isinstance(value, _FUNCTIONS):
            yield f"{path}.{name}", id(value)
        elif isinstance(value, _CONTAINERS):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                if isinstance(item, _WATCHED):
                    yield f"{path}.{name}[{key!r}]", _mark(item)


#: What every module has of itself: looked up at each call, or told by the hooks above.
_TORCH_OWN = frozenset(vars(nn.Module()))


def _ties(module: nn.Module) -> Hashable:
    """Which parameters are one tensor, by the order in which they come."""
    first: dict[int, int] = {}
    parameters = module.named_parameters(remove_duplicate=False)
    return tuple(first.setdefault(id(p), number) for number, (_, p) in enumerate(parameters))
