"""What a unit depends on besides its arguments, and whether it still holds.

Modules are compared as a whole, but only after something was written to a module, and once in each
scope. Plain values outside of modules (globals, closure cells, attributes of other objects,
elements of containers) are few, and are read again and compared at every call.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import nn

from penstock.capture.lazy.guarded_values import ABSENT, has_items, is_same, original_of
from penstock.capture.lazy.module_changes import changes
from penstock.capture.lazy.module_facts import attribute_names, has_hooks, module_facts
from penstock.capture.lazy.watched import Watched
from penstock.capture.looks import cell_is_filled


def _facts(modules: tuple[nn.Module, ...]) -> tuple[Hashable, ...]:
    with torch._C.DisableTorchFunction():  # a recording mode would look at every tensor first
        return tuple(module_facts(modules))


class Guards:
    """Tells whether all that was watched is as it was when the guards were made."""

    __slots__ = (
        "_attributes",
        "_callers",
        "_cells",
        "_class_names",
        "_containers",
        "_dtype",
        "_facts",
        "_modules",
        "_names",
        "_objects",
        "checked",
        "is_quiet",
    )

    def __init__(self, watched: Watched) -> None:
        self._modules = tuple(watched.modules.values())
        self._callers = tuple((module, type(module)) for module in watched.callers.values())
        self._attributes = tuple(watched.attributes)
        self._class_names = tuple(watched.class_names)
        self._names = tuple(watched.names)
        self._objects = tuple(watched.objects)
        self._cells = tuple(watched.cells)
        self._containers = tuple(watched.containers)
        self._dtype = torch.get_default_dtype()
        #: The count of changes at which modules were last found unchanged.
        self.checked = changes.count
        #: Whether there is nothing to compare but modules.
        self.is_quiet = not (self._names or self._cells or self._containers)
        self._facts = _facts(self._modules)
        changes.names.update(attribute_names(self._modules), (a[1] for a in self._attributes))
        changes.names.update(name for _, name in self._class_names)

    def hold(self) -> bool:
        """Whether everything is as it was; a changed count makes it look at all modules."""
        if self.checked != changes.count and not self._check_modules():
            return False
        for holder, name, value in self._names:
            now = holder.get(name, ABSENT)
            if now is not value and not is_same(now, value):
                return False
        for cell, value in self._cells:
            now = cell.cell_contents if cell_is_filled(cell) else ABSENT
            if now is not value and not is_same(now, value):
                return False
        return all(has_items(container, items) for container, items in self._containers)

    def _check_modules(self) -> bool:
        count = changes.count
        if self._dtype is not torch.get_default_dtype():
            return False
        for holder, name, value in self._objects:
            if original_of(holder.get(name, ABSENT)) is not value:
                return False
        for module, name, value in self._attributes:
            if not is_same(getattr(module, name, ABSENT), value):
                return False
        for module, kind in self._callers:
            if type(module) is not kind or has_hooks(module) or "forward" in vars(module):
                return False
        if any(name in vars(module) for module, name in self._class_names):
            return False
        if _facts(self._modules) != self._facts:
            return False
        self.checked = count
        return True
