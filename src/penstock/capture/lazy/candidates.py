"""Which functions and methods of a model could be units of themselves.

Looked at are the methods of all classes of modules within reach, and the functions that their code
and the mapped callable name: as globals, in modules of the user's, in closure cells. Whether a call
really is a unit is decided when it happens; here only those are taken whose own bytecode does not
speak against it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from penstock.capture.lazy.bytecode import find_effects
from penstock.capture.lazy.guarded_values import original_of
from penstock.capture.lazy.patches import Place
from penstock.capture.lazy.purity import MARK
from penstock.capture.lazy.unit_traces import reached_modules
from penstock.capture.looks import cell_is_filled
from penstock.capture.reach import global_names

_LIBRARIES = frozenset(["torch", "penstock", "numpy", "builtins"]) | sys.stdlib_module_names


@dataclass(slots=True)
class Candidates:
    """What was found within reach of a callable."""

    #: Where functions are that ask before they run.
    places: list[Place] = field(default_factory=list)
    #: Functions whose bytecode speaks against it, with the reason.
    refused: dict[str, str] = field(default_factory=dict)


def find_candidates(callable_: Any) -> Candidates:
    """The candidates within reach of a module, method, function or partial."""
    search = _Search()
    for module in reached_modules(callable_):
        search.add_class(type(module))
    search.add_callable(callable_)
    return search.found


class _Search:
    def __init__(self) -> None:
        self.found = Candidates()
        self._seen: set[int] = set()

    def add_callable(self, value: Any) -> None:
        """The code of a callable, which is no candidate itself."""
        if isinstance(value, functools.partial):
            self.add_callable(value.func)
        elif isinstance(value, MethodType):
            self.add_class(type(value.__self__))
            self._follow(original_of(value.__func__))
        elif isinstance(value, nn.Module):
            self.add_class(type(value))
        else:
            self._follow(original_of(value))

    def add_class(self, kind: type) -> None:
        """The methods of a class and of its bases, as far as they are the user's."""
        for base in kind.__mro__:
            if id(base) in self._seen or _is_library(base):
                continue
            self._seen.add(id(base))
            for name, value in list(vars(base).items()):
                function = original_of(value)
                if not isinstance(function, FunctionType):
                    continue
                is_special = name.startswith("__") and name.endswith("__")
                if not is_special and name != "forward":
                    self._judge(Place(base, name), function, has_owner=True)
                self._follow(function)

    def _judge(self, place: Place, function: FunctionType, *, has_owner: bool) -> None:
        if MARK in function.__dict__:
            return
        reason = find_effects(function.__code__, has_owner).reason
        if reason is None:
            self.found.places.append(place)
        else:
            name = function.__qualname__.rpartition("<locals>.")[2]
            self.found.refused[name] = reason.removeprefix("it ")

    def _follow(self, function: Any) -> None:
        """The functions that a function names."""
        if not isinstance(function, FunctionType) or id(function) in self._seen:
            return
        self._seen.add(id(function))
        for place in _named_functions(function):
            inner = original_of(place.read())
            if isinstance(inner, FunctionType) and not _is_library(inner):
                if (id(place.holder), place.name) not in self._seen_places():
                    self._judge(place, inner, has_owner=False)
                self._follow(inner)

    def _seen_places(self) -> set[tuple[int, str]]:
        return {(id(place.holder), place.name) for place in self.found.places}


def _named_functions(function: FunctionType) -> Iterator[Place]:
    code: CodeType = function.__code__
    names = set(global_names(code))
    space = function.__globals__
    for name in sorted(names & space.keys()):
        value = space[name]
        if isinstance(value, FunctionType):
            yield Place(space, name)
        elif isinstance(value, ModuleType) and not _is_library(value):
            yield from _in_module(value, names)
    cell: CellType
    for cell in function.__closure__ or ():
        if cell_is_filled(cell) and isinstance(cell.cell_contents, FunctionType):
            yield Place(cell, "cell_contents")


def _in_module(module: ModuleType, names: set[str]) -> Iterator[Place]:
    for name in sorted(names & vars(module).keys()):
        if isinstance(vars(module)[name], FunctionType):
            yield Place(vars(module), name)


def _is_library(value: Any) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return (name or "builtins").split(".")[0] in _LIBRARIES
