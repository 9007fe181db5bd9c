"""Follows the paths that a function reads, and watches every value on the way.

Nothing of the user's is run: properties and methods are found, not called. A step that could run
code of unknown effect is refused.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Iterator
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from penstock.capture.lazy.called_names import is_library_module
from penstock.capture.lazy.guarded_values import ABSENT, SIMPLE_TYPES, original_of
from penstock.capture.lazy.seen import Path
from penstock.capture.lazy.watched import Watched
from penstock.capture.looks import cell_is_filled


class NotPure(Exception):
    """What speaks against a function, in words."""


class Member(NamedTuple):
    """A method or attribute of a tensor, a number or a container."""

    base: Any
    name: str


#: A value of which nothing is known but that a pure computation made it.
UNKNOWN = object()

CONTAINERS = (list, tuple, dict, set, frozenset)
_MODULE_CONTAINERS = (
    nn.ModuleList,
    nn.ModuleDict,
    nn.Sequential,
    nn.ParameterList,
    nn.ParameterDict,
)


class Lookup:
    """The values behind the paths of one function."""

    def __init__(
        self,
        function: FunctionType,
        owner: Any,
        watched: Watched,
        check_property: Callable[[FunctionType, Any], None],
    ) -> None:
        self._function, self._owner, self._watched = function, owner, watched
        self._check_property = check_property

    def values(self, path: Path) -> list[Any]:
        """Everything that the path may lead to."""
        root, *steps = path
        found = [self._root(*root)]
        for kind, key in steps:
            if kind == "attribute":
                found = [self._attribute(value, key) for value in found]
            elif kind == "item":
                found = [self._item(value, key) for value in found]
            else:
                found = [item for value in found for item in self._items(value)]
        return [original_of(value) for value in found]

    def _root(self, kind: str, name: str) -> Any:
        if kind == "self":
            return self._owner
        if kind == "super":
            return super(self._cell("__class__"), self._owner)
        if kind == "cell":
            return self._cell(name)
        space = self._function.__globals__
        if name not in space and hasattr(builtins, name):
            return getattr(builtins, name)
        value = original_of(space.get(name, ABSENT))
        if value is ABSENT:
            raise NotPure(f"reads {name}, which has no value")
        if not is_library_module(value):
            self._watched.add_name(space, name, value)
        return value

    def _cell(self, name: str) -> Any:
        code = self._function.__code__
        cells = dict(zip(code.co_freevars, self._function.__closure__ or (), strict=True))
        cell: CellType | None = cells.get(name)
        if cell is None or not cell_is_filled(cell):
            raise NotPure(f"reads {name}, which has no value")
        value = cell.cell_contents
        if name != "__class__":
            self._watched.add_cell(cell, value)
        return value

    def _attribute(self, value: Any, name: str) -> Any:
        if value is UNKNOWN or isinstance(value, Member):
            return Member(value, name)
        if isinstance(value, (torch.Tensor, *SIMPLE_TYPES, *CONTAINERS)):
            return Member(value, name)
        if isinstance(value, super):
            return _found(getattr(value, name, ABSENT), value, name)
        if is_library_module(value):
            return _found(getattr(value, name, ABSENT), value, name)
        if isinstance(value, ModuleType):
            return self._named(vars(value), name, value)
        if isinstance(value, type):
            return self._of_class(value, name, value)
        return self._of_object(value, name)

    def _named(self, holder: Any, name: str, value: Any) -> Any:
        found = original_of(_found(holder.get(name, ABSENT), value, name))
        self._watched.add_name(holder, name, found)
        return found

    def _of_object(self, value: Any, name: str) -> Any:
        kind = type(value)
        if isinstance(kind.__getattribute__, FunctionType):
            raise NotPure(f"reads an attribute of a {kind.__name__}, which finds them by itself")
        static = inspect.getattr_static(kind, name, ABSENT)
        if isinstance(static, property):
            if static.fget is None:
                raise NotPure(f"reads {name}, which cannot be read")
            self._check_property(static.fget, value)  # type: ignore[arg-type]
            return UNKNOWN
        if isinstance(value, nn.Module):
            return self._of_module(value, name)
        state = getattr(value, "__dict__", {})
        if name in state:
            return self._named(state, name, value)
        self._watched.add_name(state, name, ABSENT)
        return self._of_class(kind, name, value)

    def _of_module(self, module: nn.Module, name: str) -> Any:
        state = vars(module)
        places = ("_parameters", "_buffers", "_modules")
        if name in state or any(name in state[place] for place in places):
            found = getattr(module, name)
            self._watched.add_attribute(module, name, found)
            return found
        self._watched.add_class_name(module, name)
        return self._of_class(type(module), name, module)

    def _of_class(self, kind: type, name: str, value: Any) -> Any:
        holder = next((vars(base) for base in kind.__mro__ if name in vars(base)), None)
        if holder is None:
            raise NotPure(f"reads {name} of a {kind.__name__}, which has none")
        found = self._named(holder, name, value)
        if isinstance(found, staticmethod):
            return found.__func__
        if isinstance(found, classmethod):
            return MethodType(found.__func__, kind)
        if isinstance(found, FunctionType) and value is not kind:
            return MethodType(found, value)
        return found

    def _item(self, value: Any, key: Any) -> Any:
        if isinstance(value, list | tuple | dict):
            self._watched.add_container(value)
        elif isinstance(value, _MODULE_CONTAINERS):
            self._watched.add_module(value)
        else:
            return _unknown_item(value)
        try:
            return value[key]
        except (LookupError, TypeError):
            raise NotPure(f"reads an item {key!r} that is not there") from None

    def _items(self, value: Any) -> Iterator[Any]:
        if isinstance(value, CONTAINERS):
            self._watched.add_container(value)
            yield from value
            if isinstance(value, dict):
                yield from value.values()
        elif isinstance(value, _MODULE_CONTAINERS):
            self._watched.add_module(value)
            yield from value
            if isinstance(value, nn.ModuleDict | nn.ParameterDict):
                yield from value.values()
        else:
            yield _unknown_item(value)


def _unknown_item(value: Any) -> Any:
    if value is UNKNOWN or isinstance(value, (Member, torch.Tensor, *SIMPLE_TYPES)):
        return UNKNOWN
    raise NotPure(f"reads items of a {type(value).__name__}")


def _found(value: Any, holder: Any, name: str) -> Any:
    if value is ABSENT:
        raise NotPure(f"reads {name} of a {type(holder).__name__}, which has none")
    return value
