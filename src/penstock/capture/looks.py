"""Where things were found, and what lies there now.

All of it is read at every call of a program, so it is kept in a few flat lists and read in a few
passes, with one call of Python for many things.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from operator import attrgetter, itemgetter
from types import CellType, FunctionType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn

#: Between what two containers hold, so that nothing moves from one to the other unnoticed.
_END = object()

#: In the place of what a cell or a slot does not have.
_ABSENT = object()

#: Values of a dict by their names.
_Find: TypeAlias = "Callable[[Any], tuple[Any, ...]]"

_OF_FUNCTIONS = attrgetter("__code__", "__defaults__", "__kwdefaults__")

#: What every module has of itself.
_OF_MODULES = ("training", "_modules", "_parameters", "_forward_hooks", "_forward_pre_hooks")


class Moved(Exception):
    """Something is no longer where it was found."""


class _Space(NamedTuple):
    """A dict of globals, or an object, where names were looked for."""

    place: Any
    find: _Find
    #: Names that would count if they were there.
    absent: frozenset[str]


class Looks:
    """Where things were found."""

    def __init__(self) -> None:
        self._functions: list[FunctionType] = []
        self._cells: list[CellType] = []
        #: By identity: dicts of globals, with the names that were looked for.
        self._globals: dict[int, tuple[dict[str, Any], set[str]]] = {}
        self._read: list[_Space] = []
        self._spaces: list[_Space] = []
        self._classes: list[tuple[type, _Find]] = []
        self._partials: list[partial[Any]] = []
        self._slots: list[tuple[Any, str]] = []
        self._modules: list[tuple[nn.Module, _Find, _Find | None]] = []
        self._lists: list[Iterable[object]] = []
        self._dicts: list[dict[Any, Any]] = []
        #: Objects that are there for certain, but may be given another class.
        self._objects: list[object] = []

    def add_function(self, function: FunctionType, names: Iterable[str]) -> None:
        """The code of a function and its defaults, and these globals of it."""
        self._functions.append(function)
        self._cells += function.__closure__ or ()
        space = function.__globals__
        self._globals.setdefault(id(space), (space, set()))[1].update(names)

    def add_attributes(self, owner: Any, names: Iterable[str], absent: Iterable[str] = ()) -> None:
        """Attributes that an object or a class has itself, and others that it may get."""
        self._objects.append(owner)
        self._spaces.append(_Space(owner, _finder(names), frozenset(absent)))

    def add_class(self, cls: type, names: Iterable[str]) -> None:
        """Attributes of a class, and how many it has."""
        self._classes.append((cls, _finder(names)))

    def add_partial(self, bound: partial[Any]) -> None:
        """What a partial function calls, and with what."""
        self._partials.append(bound)

    def add_slots(self, owner: Any, names: Iterable[str]) -> None:
        """Attributes of an object that lie in slots."""
        self._slots += ((owner, name) for name in names)

    def add_module(
        self, module: nn.Module, names: Iterable[str], of_kind: Collection[str] = ()
    ) -> None:
        """A module with these attributes, others of which only the type counts, and all that
        modules hold.
        """
        self._objects.append(module)
        kinds = _finder(of_kind) if of_kind else None
        self._modules.append((module, _finder([*_OF_MODULES, *names]), kinds))

    def add_container(self, container: Any) -> None:
        """What lies in a container."""
        self._objects.append(container)
        (self._dicts if isinstance(container, dict) else self._lists).append(container)

    def finish(self) -> Looks:
        """All of it, once nothing is added any more."""
        for space, names in self._globals.values():
            here = names & space.keys()
            self._read.append(_Space(space, _finder(here), frozenset(names - here)))
        self._globals.clear()
        return self

    def hold_tensors(self) -> bool:
        """Whether a container that is looked at holds tensors."""
        lists = [*self._lists, *(mapping.values() for mapping in self._dicts)]
        return any(isinstance(item, torch.Tensor) for items in lists for item in items)

    def now(self) -> list[object]:
        """What lies there now; raises `Moved` where something is gone or has come."""
        try:
            return self._found()
        except KeyError:
            raise Moved from None

    def _found(self) -> list[object]:
        found = list(self._objects)
        for function in self._functions:
            found += _OF_FUNCTIONS(function)
        for space, find, absent in self._read:
            found += find(space)
            if absent and not space.keys().isdisjoint(absent):
                raise KeyError
        for owner, find, absent in self._spaces:
            space = owner.__dict__
            found += find(space)
            if absent and not space.keys().isdisjoint(absent):
                raise KeyError
        for cls, find in self._classes:
            found += find(cls.__dict__)
            found.append(len(cls.__dict__))
        for module, find, kinds in self._modules:
            attributes = module.__dict__
            found += _in_module(attributes, find)
            if kinds is not None:
                found += map(type, kinds(attributes))
        for items in self._lists:
            found += items
            found.append(_END)
        for mapping in self._dicts:
            found += mapping
            found += mapping.values()
            found.append(_END)
        for bound in self._partials:
            found += (bound.func, *bound.args, _END, *bound.keywords, *bound.keywords.values())
        found += map(_content, self._cells)
        found += [getattr(owner, name, _ABSENT) for owner, name in self._slots]
        return found


def _in_module(attributes: dict[str, Any], find: _Find) -> list[Any]:
    found = [*find(attributes), len(attributes)]
    _, modules, parameters, hooks, hooks_before = found[:5]
    if modules:
        found += modules
        found += modules.values()
    found += parameters.values()
    if hooks:
        found += hooks.values()
    found.append(_END)
    if hooks_before:
        found += hooks_before.values()
    return found


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return _ABSENT


def _finder(names: Iterable[str]) -> _Find:
    """What a dict has by these names, as a tuple however many they are."""
    known = tuple(names)
    if not known:
        return lambda _: ()
    return itemgetter(*known, known[0])


def cell_is_filled(cell: CellType) -> bool:
    """Whether a closure cell has a value yet."""
    return _content(cell) is not _ABSENT
