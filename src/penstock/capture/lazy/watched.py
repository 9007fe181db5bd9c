"""What a unit was found to read, besides its arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from penstock.capture.lazy.guarded_values import (
    ABSENT,
    SIMPLE_TYPES,
    contents,
    kept,
    kept_attribute,
    original_of,
)
from penstock.capture.looks import cell_is_filled
from penstock.capture.reach import global_names


@dataclass(slots=True)
class Watched:
    """What was found to be read. Only grows, until guards are made of it."""

    #: Modules that are compared with all they hold.
    modules: dict[int, nn.Module] = field(default_factory=dict)
    #: Modules that are called; none has hooks.
    callers: dict[int, nn.Module] = field(default_factory=dict)
    #: Single attributes of modules: (module, name, value).
    attributes: list[tuple[nn.Module, str, Any]] = field(default_factory=list)
    #: Names of modules that were found in their classes, and not in the modules: (module, name).
    class_names: list[tuple[nn.Module, str]] = field(default_factory=list)
    #: Simple values by name in a dict of globals or of an object's attributes.
    names: list[tuple[Mapping[str, Any], str, Any]] = field(default_factory=list)
    #: The same for functions, classes and other objects, which are compared once in each scope.
    objects: list[tuple[Mapping[str, Any], str, Any]] = field(default_factory=list)
    cells: list[tuple[CellType, Any]] = field(default_factory=list)
    #: Lists, tuples and dicts with the items they had.
    containers: list[tuple[Any, tuple[Any, ...]]] = field(default_factory=list)

    def add_name(self, holder: Mapping[str, Any], name: str, value: Any) -> None:
        """A value that was read by name."""
        is_plain = isinstance(value, (*SIMPLE_TYPES, torch.Tensor)) or value is ABSENT
        entry = (holder, name, kept(value))
        target = self.names if is_plain else self.objects
        if not any(known[0] is holder and known[1] == name for known in target):
            target.append(entry)

    def add_module(self, module: nn.Module) -> None:
        """A module whose call the unit may depend on."""
        self.modules.setdefault(id(module), module)

    def add_container(self, container: Any) -> None:
        """A list, tuple, set or dict whose items were read."""
        if not any(known is container for known, _ in self.containers):
            self.containers.append((container, tuple(map(kept, contents(container)))))

    def add_cell(self, cell: CellType, value: Any) -> None:
        """A value of a closure."""
        self.cells.append((cell, kept(value)))

    def add_class_name(self, module: nn.Module, name: str) -> None:
        """A name of a module that its class has, until the module gets one of its own."""
        self.class_names.append((module, name))

    def add_attribute(self, module: nn.Module, name: str, value: Any) -> None:
        """A single attribute of a module."""
        self.attributes.append((module, name, kept_attribute(value)))


def watch_all(target: Any) -> Watched:
    """Everything within reach of a callable whose code is not understood."""
    watched = Watched()
    _watch_callable(target, watched, set())
    return watched


def _watch_callable(target: Any, watched: Watched, seen: set[int]) -> None:
    if id(target) in seen:
        return
    seen.add(id(target))
    owner = getattr(target, "__self__", None)
    for value in (target, owner):
        if isinstance(value, nn.Module):
            watched.add_module(value)
    if owner is not None and not isinstance(owner, nn.Module) and hasattr(owner, "__dict__"):
        names = [name for name in vars(owner) if not name.startswith("_penstock")]
        _watch_names(vars(owner), names, watched, seen)
    function = original_of(getattr(target, "__func__", target))
    if not isinstance(function, FunctionType):
        return
    _watch_names(function.__globals__, global_names(function.__code__), watched, seen)
    for cell in function.__closure__ or ():
        if cell_is_filled(cell):
            watched.add_cell(cell, original_of(cell.cell_contents))
            _watch_value(cell.cell_contents, watched, seen)


def _watch_names(
    space: Mapping[str, Any], names: Iterable[str], watched: Watched, seen: set[int]
) -> None:
    for name in names:
        if name in space:
            value = original_of(space[name])
            watched.add_name(space, name, value)
            _watch_value(value, watched, seen)


def _watch_value(value: Any, watched: Watched, seen: set[int]) -> None:
    if isinstance(value, nn.Module):
        watched.add_module(value)
    elif isinstance(value, list | tuple | dict):
        watched.add_container(value)
    elif isinstance(value, FunctionType | MethodType) and not _is_library(value):
        _watch_callable(value, watched, seen)


def _is_library(function: Any) -> bool:
    return (function.__module__ or "").split(".")[0] in ("torch", "penstock")
