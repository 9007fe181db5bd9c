"""The programs of the table by theme; importing this package fills `PROGRAMS`."""

from tests.semantics.programs import (
    arrays,
    choices,
    decoding,
    iteration,
    loops,
    ragged,
    recursion,
    sequences,
    slices,
    trees,
)
from tests.semantics.table import PROGRAMS, Case, TableProgram

__all__ = [
    "PROGRAMS",
    "Case",
    "TableProgram",
    "arrays",
    "choices",
    "decoding",
    "iteration",
    "loops",
    "ragged",
    "recursion",
    "sequences",
    "slices",
    "trees",
]
