"""The instructions of a schedule: what the planner asks the runner to do, in order.

A schedule is plain data: numbers, numpy arrays and names. It can be pickled, hashed and replayed.
An instruction names rows by the slots of an arena; an arena holds values of one kind (dtype, shape,
device).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Integers: TypeAlias = npt.NDArray[np.int64]
Array: TypeAlias = npt.NDArray[Any]


class Kind(NamedTuple):
    """What an arena holds."""

    dtype: str
    shape: tuple[int, ...]
    device: str


class Span(NamedTuple):
    """Consecutive slots. With `length`, each row has that many consecutive elements."""

    arena: int
    start: int
    count: int  # type: ignore[assignment]
    length: int | None = None
    #: Of a target: all that the arena holds from now on, taken over as it is made.
    is_whole: bool = False


class Picks(NamedTuple):
    """Any slots of an arena. With `length`, each row has that many, one after the other."""

    arena: int
    slots: Integers
    length: int | None = None


class Hosted(NamedTuple):
    """Host values that go along with the launch."""

    values: Array


class Shared(NamedTuple):
    """The uniform value with this wire number."""

    wire: int


class Sized(NamedTuple):
    """A dynamic size, the same for all rows of the launch."""

    size: int


Operand: TypeAlias = Span | Picks | Hosted | Shared | Sized
Target: TypeAlias = Span | Picks


class Launch(NamedTuple):
    """Run a block for many rows: gather the operands, run it once, write the results."""

    block: int
    rows: int
    operands: tuple[Operand, ...]
    targets: tuple[Target, ...]


class Store(NamedTuple):
    """Write host values to slots."""

    values: Array
    target: Target


class Copy(NamedTuple):
    """Copy values to other slots; several values make up one of the target, in another arena."""

    source: Span | Picks
    target: Span | Picks


class Pad(NamedTuple):
    """Put sequences side by side in an arena, each behind with zeros up to one length."""

    #: The elements of all sequences, one sequence after the other.
    source: Span | Picks
    #: How many elements each sequence has.
    lengths: Integers
    target: Span
    length: int


class Unpad(NamedTuple):
    """Take padded sequences apart again: only their own elements are copied."""

    source: Span
    lengths: Integers
    target: Span | Picks
    length: int


class Read(NamedTuple):
    """Read values back; the runner answers with one numpy array per source."""

    sources: tuple[Span | Picks, ...]


class Chunk(NamedTuple):
    """An arena grows by this many slots, which never move."""

    arena: int
    start: int
    count: int  # type: ignore[assignment]


class Mark(NamedTuple):
    """Iterations have ended here, of which others are told by this number."""

    number: int


class Await(NamedTuple):
    """The next launch belongs to iterations that begin once all before a mark has been done."""

    mark: int


Instruction: TypeAlias = Launch | Store | Copy | Pad | Unpad | Read | Chunk | Mark | Await


@dataclass(slots=True)
class Schedule:
    """A linear list of instructions with the kinds of the arenas they name."""

    instructions: list[Instruction] = field(default_factory=list)
    arenas: list[Kind] = field(default_factory=list)
    blocks: tuple[str, ...] = ()
    #: How many nodes the machine fired to make it.
    firings: int = 0

    @property
    def launches(self) -> list[Launch]:
        """The launches alone."""
        return [item for item in self.instructions if isinstance(item, Launch)]

    def count(self, name: str) -> int:
        """How often a block whose name contains `name` is launched."""
        return sum(name in self.blocks[launch.block] for launch in self.launches)

    def digest(self) -> str:
        """A fingerprint: equal schedules have equal digests, byte for byte."""
        hasher = hashlib.blake2b(digest_size=8)
        for piece in pieces_of((self.arenas, self.blocks, self.instructions)):
            hasher.update(piece)
        return hasher.hexdigest()

    def __str__(self) -> str:
        lines = [f"schedule: {len(self.launches)} launches, {len(self.arenas)} arenas"]
        for item in self.instructions:
            if isinstance(item, Launch):
                lines.append(f"  launch {self.blocks[item.block]}  rows {item.rows}")
            elif isinstance(item, Read):
                lines.append(f"  read   {sum(map(slot_count, item.sources))} values")
        return "\n".join(lines)


def slot_count(source: Span | Picks) -> int:
    """How many slots an operand or a target has."""
    return source.count if type(source) is Span else len(source.slots)  # type: ignore[union-attr]


def slots_of(source: Span | Picks) -> Integers:
    """The slots of an operand or a target, one by one."""
    if isinstance(source, Span):
        return np.arange(source.start, source.start + source.count)
    return source.slots


def pieces_of(item: object) -> list[bytes]:
    """What is hashed of a schedule or of a part of it."""
    pieces: list[bytes] = []
    _add_pieces(item, pieces.append)
    return pieces


def _add_pieces(item: object, add: Callable[[bytes], None]) -> None:
    if isinstance(item, tuple | list):
        add(type(item).__name__.encode())
        for inner in item:
            if type(inner) is int:
                add(b"%d " % inner)
            else:
                _add_pieces(inner, add)
    elif isinstance(item, np.ndarray):
        add(f"{item.dtype}{item.shape}".encode())
        add(np.ascontiguousarray(item).tobytes())
    else:
        add(repr(item).encode() + b" ")


def consecutive(slots: Integers) -> bool:
    """Whether the slots are one ascending run."""
    count = len(slots)
    if count == 1:
        return True
    if count == 0 or slots[-1] - slots[0] != count - 1:
        return False
    return bool((slots[1:] - slots[:-1] == 1).all())


def pick(arena: int, slots: Integers, length: int | None = None) -> Span | Picks:
    """Slots as an operand: a span where they are consecutive."""
    if consecutive(slots):
        return Span(arena, int(slots[0]), len(slots), length)
    return Picks(arena, slots, length)


def concatenate(parts: Iterable[Integers]) -> Integers:
    """One array of several, without a copy for one."""
    listed = list(parts)
    return listed[0] if len(listed) == 1 else np.concatenate(listed)
