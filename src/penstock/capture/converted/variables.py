"""The variables of one `if` or loop: what they hold, and how each body gets its own.

The conversion names the variables and marks them: `l` is read later, `m` is changed in place, `g`
is a list that may grow, `o` grows by one in each iteration, `p` is a parameter, `r` holds what the
function returns once its flag is set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.calls.structure import flatten, unflatten
from penstock.capture.converted.effects import changed_list
from penstock.capture.converted.lists import TracedList
from penstock.capture.converted.undefined import Undefined
from penstock.conversion.build import PREFIX

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer

Values = dict[str, Any]


@dataclass(slots=True)
class Variables:
    """Access to the variables of one statement."""

    get: Callable[[], tuple[Any, ...]]
    set: Callable[[tuple[Any, ...]], None]
    facts: tuple[tuple[str, str], ...]

    def values(self) -> Values:
        """What each holds now."""
        return {name: value for (name, _), value in zip(self.facts, self.get(), strict=True)}

    def assign(self, values: Values) -> None:
        """Give each a value."""
        self.set(tuple(values[name] for name, _ in self.facts))

    def clear_flags(self) -> None:
        """In a body that runs only while nothing has ended its loop, the flags say so."""
        values = self.values()
        for name in values:
            if name.startswith((f"{PREFIX}broken", f"{PREFIX}has_returned")):
                values[name] = False
        self.assign(values)

    def marked(self, mark: str) -> list[str]:
        """The names with that mark."""
        return [name for name, marks in self.facts if mark in marks]

    def prepare(self, tracer: Tracer) -> Values:
        """What they hold before a traced body: a list that may grow there is a traced one."""
        values = self.values()
        parameters = self.marked("p")
        for name in self.marked("g"):
            if type(values[name]) is list:
                if name in parameters:
                    raise changed_list(name, values[name])
                values[name] = TracedList.of(tracer, values[name], name)
        return values

    def enter(self, tracer: Tracer, values: Values) -> None:
        """Begin a body: what may be changed in place is its own."""
        own = dict(values)
        changed = self.marked("m")
        for name, value in values.items():
            if isinstance(value, TracedList):
                own[name] = value.copy()
            elif name in changed and isinstance(value, dict | list | set):
                own[name] = tracer.scope.own(_copied(value))
            elif name in changed and not isinstance(value, Undefined):
                leaves, structure = flatten(value)
                if not (len(leaves) == 1 and leaves[0] is value):
                    own[name] = tracer.scope.own(unflatten(structure, leaves))
        self.assign(own)


def _copied(value: Any) -> Any:
    """A container with the same contents, and so on inside."""
    if isinstance(value, set):
        return set(value)
    leaves, structure = flatten(value)
    return unflatten(structure, leaves)
