"""Tensors that a program reads by reference, and where to find them again at every call.

A tensor that belongs to a module within reach of the traced function is looked up by owner and
name, so that a replaced parameter is seen. Any other tensor is kept as it is.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, TypeAlias

import torch
from torch import nn


@dataclass(frozen=True, slots=True, eq=False)
class Capture:
    """One captured tensor."""

    #: How the user would write it, such as `self.cell.weight`.
    name: str
    #: The tensor itself; the current one is `fetch()`.
    tensor: torch.Tensor
    owner: nn.Module | None = None
    attribute: str = ""
    #: The position among the shared arguments of a call, for tensors that are given at each call.
    shared: int | None = None

    def fetch(self) -> torch.Tensor:
        """The tensor as it is now."""
        if self.owner is None:
            return self.tensor
        tensor: torch.Tensor | None = self.owner._parameters.get(self.attribute)
        return getattr(self.owner, self.attribute) if tensor is None else tensor


class Owners:
    """Which module and attribute each tensor within reach belongs to."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[str, nn.Module, str]] = {}
        self._seen: set[int] = set()
        #: Every module within reach, in the order found.
        self.modules: list[nn.Module] = []

    def add_function(self, function: Any) -> None:
        """Take in all modules that `function` can reach."""
        for name, value in reachable(function):
            self._add(name, value)

    def capture(self, tensor: torch.Tensor, number: int) -> Capture:
        """How to fetch `tensor` later."""
        place = self._places.get(id(tensor))
        if place is None or getattr(place[1], place[2], None) is not tensor:
            return Capture(f"tensor{number}", tensor)
        name, owner, attribute = place
        return Capture(name, tensor, owner, attribute)

    def _add(self, name: str, value: Any) -> None:
        if not isinstance(value, nn.Module) or id(value) in self._seen:
            return
        for path, module in value.named_modules():
            self._seen.add(id(module))
            self.modules.append(module)
            prefix = f"{name}.{path}" if path else name
            tensors = {**module._parameters, **module._buffers}
            for attribute, tensor in (*tensors.items(), *vars(module).items()):
                if isinstance(tensor, torch.Tensor):
                    place = (f"{prefix}.{attribute}", module, attribute)
                    self._places.setdefault(id(tensor), place)


#: Finds the objects that lie now where `reachable` has looked.
Look: TypeAlias = Callable[[], Iterable[object]]

#: In the place of a global that is not there.
_ABSENT = object()


def reachable(
    function: Any, depth: int = 3, looks: list[Look] | None = None
) -> Iterator[tuple[str, Any]]:
    """Named values that `function` closes over, is bound to, or reads as globals; also through
    other functions and plain containers. What it gives stays the same as long as all that `looks`
    find does.
    """
    looks = [] if looks is None else looks
    for name, value in _direct(function, looks):
        yield name, value
        if depth and is_code_carrier(value):
            yield from reachable(value, depth - 1, looks)
        elif depth and isinstance(value, list | tuple | dict):
            looks.append(functools.partial(contents_of, value))
            items: Iterable[Any] = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                yield f"{name}[{key!r}]", item
                if is_code_carrier(item):
                    yield from reachable(item, depth - 1, looks)
        elif depth and name == "self" and not isinstance(value, nn.Module):
            looks.append(functools.partial(_attributes, value))
            for key, item in getattr(value, "__dict__", {}).items():
                yield f"self.{key}", item


def contents_of(container: Any) -> Iterable[object]:
    """What lies in a list, a tuple or a dict, keys included."""
    return [*container, *container.values()] if isinstance(container, dict) else container


def bound_by(function: functools.partial[Any]) -> Iterable[object]:
    """What a partial function calls, and with what."""
    return [function.func, *function.args, *contents_of(function.keywords)]


def _attributes(value: Any) -> Iterable[object]:
    return contents_of(getattr(value, "__dict__", {}))


def _direct(function: Any, looks: list[Look]) -> Iterator[tuple[str, Any]]:
    if isinstance(function, nn.Module):
        yield "self", function
        return
    if isinstance(function, functools.partial):
        looks.append(functools.partial(bound_by, function))
        yield from ((f"partial[{i}]", value) for i, value in enumerate(function.args))
        yield from function.keywords.items()
        yield from _direct(function.func, looks)
        return
    if isinstance(function, types.MethodType):
        yield "self", function.__self__
    inner = getattr(function, "__wrapped__", function)
    plain = getattr(inner, "__func__", inner)
    code = getattr(plain, "__code__", None)
    if code is None:
        return
    names = tuple(global_names(code))
    looks.append(functools.partial(_read, plain, names))
    for name, cell in zip(code.co_freevars, plain.__closure__ or (), strict=True):
        if cell_is_filled(cell):
            yield name, cell.cell_contents
    for name in names:
        if name in plain.__globals__:
            yield name, plain.__globals__[name]


def _read(function: Any, names: tuple[str, ...]) -> list[object]:
    """The code of a function, and what its closure cells and these globals hold."""
    found = [function.__code__, *map(function.__globals__.get, names, repeat(_ABSENT))]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            found.append(_ABSENT)
    return found


def cell_is_filled(cell: Any) -> bool:
    """Whether a closure cell has a value yet."""
    try:
        return cell.cell_contents is not None or True
    except ValueError:
        return False


def global_names(code: types.CodeType) -> Iterator[str]:
    """Names that the code, and code nested in it, may look up as globals."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from global_names(constant)


def is_code_carrier(value: Any) -> bool:
    """Whether `value` is user code worth following: a function, a method, a partial."""
    carrier = isinstance(value, types.FunctionType | types.MethodType | functools.partial)
    carrier = carrier or hasattr(value, "__wrapped__")
    module = getattr(value, "__module__", None) or ""
    return carrier and module.split(".")[0] != "torch"
