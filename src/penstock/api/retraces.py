"""Why a function was traced again: what had changed since the nearest trace before.

Every trace takes time, so each is remembered with its reason and line, and many are warned of.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence

from penstock.api.batches import Batch, argument_paths
from penstock.api.entries import STATIC, Entry
from penstock.calls.structure import unflatten
from penstock.capture.location import user_line
from penstock.capture.signatures import Callee
from penstock.errors import PenstockWarning, report
from penstock.run.recording import note_retrace

#: Traces after which a warning is due, and reasons that are remembered.
MANY_TRACES, MOST_REASONS = 8, 64


class Retraces:
    """The traces of one function so far, with their reasons."""

    def __init__(self) -> None:
        self._count = 0
        #: For each trace what it was made for, and the line that asked for it.
        self._reasons: list[str] = []

    def explain(self, name: str) -> str:
        """How often the function was traced, and why each time."""
        times = "once" if self._count == 1 else f"{self._count} times"
        lines = [f"{number:>4}  {reason}" for number, reason in enumerate(self._reasons, 1)]
        return "\n".join([f"{name} was traced {times}.", *lines])

    def note(self, callee: Callee, entry: Entry, batch: Batch, known: Sequence[Entry]) -> None:
        """Remember why a trace was made, in spite of the `known`; warn where there are many."""
        self._count += 1
        args, kwargs = unflatten(batch.structure, range(len(batch.leaves)))
        paths = argument_paths(args, kwargs, list(callee.signature.parameters))
        reason = "the first call"
        if known:
            nearest = min(known, key=lambda other: _distance(other, entry))
            reason = _change(nearest, entry, paths)
            note_retrace(callee.name, f"{reason}, at {user_line()}")
        if len(self._reasons) < MOST_REASONS:
            self._reasons.append(f"{reason}, at {user_line()}")
        if self._count == MANY_TRACES + 1:
            self._warn(callee, _change(known[0], entry, paths))

    def _warn(self, callee: Callee, changed: str) -> None:
        text = report(
            f"{callee.name} was traced {self._count} times; every trace takes time.",
            where=user_line(),
            facts=[("changed", changed)],
            todo="Pass what changes as a tensor or number, or keep it the same from call to call.",
        )
        warnings.warn(text, PenstockWarning, stacklevel=2)


def _distance(before: Entry, after: Entry) -> int:
    """In how many facts two traces differ."""
    names = {*before.facts, *after.facts}
    return sum(before.facts.get(name) != after.facts.get(name) for name in names)


def _change(before: Entry, after: Entry, paths: list[str]) -> str:
    """What differs between two traces, in a few words; `paths` name the argument leaves."""
    names = [*before.facts, *(name for name in after.facts if name not in before.facts)]
    for name in names:
        old, new = before.facts.get(name), after.facts.get(name)
        if old != new:
            number = name.removeprefix(STATIC)
            shown = paths[int(number)] if number != name else name
            texts = _shown(old), _shown(new)
            return f"{shown}: {' -> '.join(texts) if texts[0] != texts[1] else 'another one'}"
    return f"shapes: {before.shapes} -> {after.shapes}"


def _shown(fact: Hashable) -> str:
    """A fact as a user would write it; plain values carry their type in front."""
    if isinstance(fact, tuple) and len(fact) == 2:
        kind, value = fact
        if isinstance(kind, type) or kind in ("bool", "int", "float", "str", "NoneType"):
            return repr(value)
    return str(fact)
