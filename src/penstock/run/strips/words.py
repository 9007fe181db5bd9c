"""The words that native code (`words.hpp`) reads, under the names and in the order that it has for
them.
"""

from __future__ import annotations

import ctypes
from array import array
from enum import IntEnum
from typing import Any

import numpy.typing as npt


class Item(IntEnum):
    """What an operand of a block is."""

    UNIFORM = 0
    SLOTS = 1
    HOSTED = 2
    #: Left to Python.
    OTHER = 3


class Set(IntEnum):
    """What is known of a set of results, in the place of a half."""

    UNKNOWN = -1
    LEFT = -2


class Given(IntEnum):
    """What becomes of a value that a half gives."""

    #: It is added to gradients of slots.
    ADDEND = 0
    #: It waits for the contraction of a weight gradient.
    FACTOR = 1
    #: It is added to the gradient of a uniform value.
    SUM = 2


class How(IntEnum):
    """How the gradient of a uniform value follows from what halves give."""

    #: Sums are added up,
    WHOLE_SUM = 0
    #: or rows;
    SUM_OF_ROWS = 1
    #: two factors are multiplied;
    PRODUCT = 2
    #: or rows are added to those of a table.
    TABLE = 3


class Gone(IntEnum):
    """What has become of a launch on the way back."""

    FRESH = 0
    GONE = 1
    HAS_PAGE = 2


class Why(IntEnum):
    """Why the way back has stopped."""

    OVER = 0
    #: The launch goes back as Python does it.
    PLAIN = 1
    #: Its half is not known, or not made ready for this pass.
    WANTED = 2
    READY = 3
    #: It is not known whether rows that lack some cotangents may go with the others.
    ZEROS = 4
    #: Scratch memory is too small.
    ROOM = 5
    #: It has gone back before.
    USED = 6
    #: It has failed half-way.
    BROKEN = 7


#: Words of a launch in the table that measuring fills: where its record is, its rows, its block,
#: where its saved values begin, whether it is run natively, where it is said which rows are the
#: same, and how many distinct ones were computed (0: each row was).
AT, ROWS, BLOCK, SAVED, IS_NATIVE, SAME, DISTINCT = range(7)
LAUNCH_WORDS = 7

#: Words of a record, at least.
LEAST_RECORD = 7

#: Results of a block that may have cotangents, and sets of them.
MOST_RESULTS = 4
SETS = 1 << MOST_RESULTS

#: Operands and targets of a block, what its halves take, and what either gives, at most.
MOST_ITEMS = 64

GRADIENT_WORDS = 6

#: Words of the gradient of a uniform value: where it is, and whether anything is written there.
PLACE, IS_WRITTEN = range(2)
UNIFORM_WORDS = 2


class Words(ctypes.Structure):
    """All that native code is told in one call, and what it says."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "heads",
            "heads_end",
            "data",
            "form_of",
            "forms",
            "arenas",
            "chunks",
            "wires",
            "counts",
            "launches",
            "same",
            "saved",
            "scratch",
            "scratch_end",
            "sgemm",
            "dgemm",
            "threads",
            "number",
            "piece_rows",
            "least_shared",
            "most_shared",
            "rows",
            "saved_bytes",
            "same_words",
            "natives",
            "scratch_most",
            "highest",
            "gradients",
            "half_of",
            "halves",
            "zeros",
            "gone",
            "factors",
            "back_wires",
            "uniform_gradients",
            "keeps",
            "why",
            "set",
            "other_set",
        )
    ]


#: What numpy itself has for this takes five times as long.
_NOTHING = ctypes.c_char * 0


def address_of(values: npt.NDArray[Any] | array[int] | bytearray) -> int:
    """Where an array is, which is contiguous and can be written to."""
    return ctypes.addressof(_NOTHING.from_buffer(values))  # type: ignore[arg-type]


def aligned(size: int) -> int:
    """Bytes up to the next value."""
    return -(-size // 64) * 64
