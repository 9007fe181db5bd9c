"""What an analysis of bytecode knows of a value: where it comes from.

A value is an argument, something outside of the function that is reached by a path from `self`, a
global or a closure cell, something made by the function, or the result of a computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType
from typing import Any

#: ("self" | "global" | "cell" | "super", name), then steps: ("attribute", name), ("item", key) or
#: ("any", "") for an element that only the run decides on.
Path = tuple[tuple[str, Any], ...]

#: Paths longer than this are not followed.
LONGEST_PATH = 8

SELF: Path = (("self", ""),)
SUPER: Path = (("super", ""),)
ANY = ("any", "")


@dataclass(frozen=True, slots=True)
class Seen:
    """A value on the stack or in a local."""

    #: "argument", "outside" (reached by `paths`), "among" (an element of what `paths` lead to),
    #: "made" (a container of the function's own), "computed", "constant", "method" (`name` of
    #: `base`), "function" (defined here), "context" (a with statement's exit), "slice", "nothing".
    kind: str
    #: Of what is computed: what was called to make it.
    paths: frozenset[Path] = frozenset()
    base: Seen | None = None
    name: str = ""
    constant: Any = None
    code: CodeType | None = None

    def __hash__(self) -> int:
        return hash((self.kind, self.paths, self.name))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Seen):
            return NotImplemented
        return (
            (self.kind, self.paths, self.base, self.name, self.code)
            == (other.kind, other.paths, other.base, other.name, other.code)
        ) and self.constant is other.constant

    @property
    def is_outside(self) -> bool:
        """Whether it is, or may be, something that exists without the function."""
        return self.kind in ("outside", "among")

    def step(self, step: tuple[str, Any]) -> frozenset[Path]:
        """The paths one step further."""
        return frozenset((*path, step) for path in self.paths)


ARGUMENT = Seen("argument")
COMPUTED = Seen("computed")
MADE = Seen("made")
NOTHING = Seen("nothing")
CONTEXT = Seen("context")
SLICE = Seen("slice")


def outside(path: Path) -> Seen:
    """What a path leads to."""
    return Seen("outside", frozenset([path]))


def join(one: Seen, other: Seen) -> Seen:
    """A value that may be either."""
    if one == other:
        return one
    if one.kind == other.kind and one.is_outside:
        return Seen(one.kind, one.paths | other.paths)
    kinds = {one.kind, other.kind}
    if kinds <= {"constant", "computed", "made"}:
        return MADE if kinds == {"made"} else Seen("computed", one.paths | other.paths)
    return ARGUMENT


def element_of(value: Seen) -> Seen:
    """What iteration, unpacking or an index that is not constant gives."""
    if value.kind == "outside":
        return Seen("outside", value.step(ANY))
    if value.kind in ("among", "argument"):
        return value
    return Seen("computed", value.paths) if value.kind == "computed" else COMPUTED


def item_of(value: Seen, key: Seen) -> Seen:
    """`value[key]`."""
    if value.kind == "outside" and key.kind == "slice":
        return Seen("among", value.paths)
    is_known = key.kind == "constant" and isinstance(key.constant, int | str)
    if value.kind == "outside" and is_known:
        return Seen("outside", value.step(("item", key.constant)))
    return element_of(value)


def shown(path: Path) -> str:
    """A path as a user would write it."""
    (root, name), *steps = path
    text = {"self": "self", "super": "super()"}.get(root) or str(name)
    for kind, key in steps:
        text += f".{key}" if kind == "attribute" else "[...]" if kind == "any" else f"[{key!r}]"
    return text
