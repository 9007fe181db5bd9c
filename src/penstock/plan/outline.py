"""Plans that differ in little but their rows, as one sequence of stages.

The outline of a plan names its launches in order: what each has in common with others, and for how
many rows. A template is an outline with room: a plan fits into it if its launches are some of the
template's stages, in order, with no more rows than these have room for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple, TypeAlias

from penstock.plan.schedule import Chunk, Instruction, Launch, Operand, Picks, Shared, Span

#: What launches have in common that one code can run: the block, for each operand its arena or its
#: uniform value, and the arenas of its targets.
Likeness: TypeAlias = tuple[int, tuple[tuple[str, int], ...], tuple[int, ...]]

#: Room beyond the rows that were seen: others will have a few more.
SLACK = 1.25


class Stage(NamedTuple):
    """Launches of one likeness, for so many rows or with room for so many."""

    likeness: Likeness
    room: int


Outline: TypeAlias = tuple[Stage, ...]


def launches_of(instructions: Iterable[Instruction]) -> list[Launch] | None:
    """The launches of a plan that does nothing else; None where it does."""
    launches: list[Launch] = []
    for item in instructions:
        if type(item) is Launch:
            launches.append(item)
        elif type(item) is not Chunk:
            return None
    return launches


def outline_of(launches: Sequence[Launch]) -> Outline | None:
    """The outline of a plan; None where a launch reads or writes something other than rows of
    arenas and uniform values.
    """
    stages: list[Stage] = []
    for launch in launches:
        operands = tuple(map(_source, launch.operands))
        if None in operands or any(map(_is_odd, launch.targets)) or not launch.rows:
            return None
        targets = tuple([target.arena for target in launch.targets])
        stages.append(Stage((launch.block, operands, targets), launch.rows))  # type: ignore[arg-type]
    return tuple(stages)


def _source(operand: Operand) -> tuple[str, int] | None:
    kind = type(operand)
    if kind is Shared:
        return "shared", operand.wire  # type: ignore[union-attr]
    if kind in (Span, Picks) and operand.length is None:  # type: ignore[union-attr]
        return "slots", operand.arena  # type: ignore[union-attr]
    return None


def _is_odd(target: Span | Picks) -> bool:
    return target.length is not None or (type(target) is Span and target.is_whole)


def fit(template: Outline, outline: Outline) -> list[int] | None:
    """The stage of a template for each launch of a plan, the first one that will do; None where the
    plan does not fit.
    """
    places: list[int] = []
    place = 0
    for likeness, rows in outline:
        while place < len(template):
            stage = template[place]
            place += 1
            if stage.room >= rows and stage.likeness == likeness:
                places.append(place - 1)
                break
        else:
            return None
    return places


def widened(template: Outline, outline: Outline) -> Outline:
    """A template with room for a plan and for all that fitted before."""
    before, more = [s.likeness for s in template], [s.likeness for s in outline]
    stages: list[Stage] = []
    for tag, first, end, start, stop in SequenceMatcher(
        None, before, more, autojunk=False
    ).get_opcodes():
        if tag == "equal":
            pairs = zip(template[first:end], outline[start:stop], strict=True)
            stages += (Stage(known.likeness, _room(known.room, new.room)) for known, new in pairs)
        else:
            stages += template[first:end]
            stages += (Stage(new.likeness, _room(0, new.room)) for new in outline[start:stop])
    return tuple(stages)


def _room(known: int, rows: int) -> int:
    return known if known >= rows else roomy(rows)


def roomy(rows: int) -> int:
    """A number of rows that is larger by some, and has few digits in binary."""
    wanted = int(rows * SLACK) + 1
    step = max(8, 1 << max(wanted.bit_length() - 4, 0))
    return -(-wanted // step) * step
