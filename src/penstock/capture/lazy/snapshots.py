"""What a call could write to while it is traced, as it was before.

Modules within reach, their containers, and the object that a method belongs to. What has changed is
put back, so that nothing of a trace stays behind.
"""

from __future__ import annotations

from typing import Any

from penstock.capture.lazy.guarded_values import contents
from penstock.capture.reach import Reach

_MUTABLE = (list, dict, set)
_INNER = ("_parameters", "_buffers", "_modules")

#: Attributes of ours on the user's objects.
_OWN = "_penstock"


class Snapshot:
    """The state of everything that `target` can reach."""

    def __init__(self, target: Any) -> None:
        self._states: dict[int, tuple[str, dict[str, Any], dict[str, Any]]] = {}
        self._containers: dict[int, tuple[str, Any, tuple[Any, ...], Any]] = {}
        reach = Reach(target)
        for path, module in reach.modules:
            self._add_state(path, vars(module))
        for name, value in reach.values.items():
            if isinstance(value, _MUTABLE):
                self._add_container(name, value)
            elif name == "self" and hasattr(value, "__dict__"):
                self._add_state(name, vars(value))

    def restore(self) -> str | None:
        """Put everything back; the name of something that was written, None where nothing was."""
        written = None
        for name, state, before in self._states.values():
            changed = _difference(state, before)
            if changed is not None:
                written = f"{name}.{changed}"
                state.clear()
                state.update(before)
        for name, container, items, copy in self._containers.values():
            now = contents(container)
            if len(now) != len(items) or any(a is not b for a, b in zip(now, items)):
                written = written or name
                _refill(container, copy)
        return written

    def _add_state(self, path: str, state: dict[str, Any]) -> None:
        if id(state) in self._states:
            return
        self._states[id(state)] = (path, state, dict(state))
        for name, value in state.items():
            if isinstance(value, _MUTABLE) and not name.startswith(_OWN):
                self._add_container(path if name in _INNER else f"{path}.{name}", value)

    def _add_container(self, name: str, container: Any) -> None:
        entry = (name, container, contents(container), container.copy())
        self._containers.setdefault(id(container), entry)


def _difference(now: dict[str, Any], before: dict[str, Any]) -> str | None:
    for name in (*now, *before):
        if name.startswith(_OWN):
            continue
        if name not in now or name not in before or now[name] is not before[name]:
            return name
    return None


def _refill(container: Any, copy: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(copy)
    else:
        container.update(copy)
