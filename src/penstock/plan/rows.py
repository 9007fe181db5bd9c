"""The rows of one context: columns of numpy arrays that grow together, and a stack of free rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from penstock.plan.schedule import Array, Integers


@dataclass(slots=True, eq=False)
class Rows:
    """What is known of each running copy of a context's body."""

    #: dtypes of the host columns.
    host_dtypes: tuple[str, ...]
    slot_columns: int
    child_columns: int
    #: How many arrivals each counting node waits for.
    waits: Integers
    #: How many rows there is room for at first.
    first: int = 256
    capacity: int = 0
    #: Rows at or above this number were never used.
    top: int = 0
    live: int = 0
    free: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    free_top: int = 0
    parent: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    site: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    instance: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    #: Firings and children that the row still waits for; at zero the row ends.
    todo: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    depth: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    #: The iteration of a loop's row, the element of a for-each's row.
    count: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    key: Array = field(default_factory=lambda: np.empty(0, np.uint64))
    host: list[Array] = field(default_factory=list)
    slots: Integers = field(default_factory=lambda: np.empty((0, 0), np.int64))
    children: Integers = field(default_factory=lambda: np.empty((0, 0), np.int64))
    pending: Integers = field(default_factory=lambda: np.empty((0, 0), np.int64))

    def create(self, count: int) -> Integers:
        """Rows with no value yet."""
        reused = min(count, self.free_top)
        fresh = count - reused
        if self.top + fresh > self.capacity:
            self._grow(max(2 * self.capacity, self.top + fresh, self.first))
        new = np.arange(self.top, self.top + fresh)
        self.top += fresh
        self.live += count
        if reused:
            self.free_top -= reused
            again = self.free[self.free_top : self.free_top + reused]
            new = np.concatenate((again, new)) if fresh else again.copy()
        if len(self.waits):
            self.pending[:, new] = self.waits[:, None]
        return new

    def end(self, rows: Integers) -> None:
        """Give rows back. The caller has dropped their references."""
        count = len(rows)
        self.live -= count
        self.free[self.free_top : self.free_top + count] = rows
        self.free_top += count
        if self.slot_columns:
            self.slots[:, rows] = -1

    def _grow(self, capacity: int) -> None:
        def more(array: Array) -> Array:
            bigger = np.empty((*array.shape[:-1], capacity), array.dtype)
            bigger[..., : self.top] = array[..., : self.top]
            return bigger

        if not self.capacity:
            self.host = [np.empty(0, dtype) for dtype in self.host_dtypes]
            self.slots = np.empty((self.slot_columns, 0), np.int64)
            self.children = np.empty((self.child_columns, 0), np.int64)
            self.pending = np.empty((len(self.waits), 0), np.int64)
        for name in _COLUMNS:
            setattr(self, name, more(getattr(self, name)))
        self.host = [more(column) for column in self.host]
        self.slots[:, self.top :] = -1
        self.free = np.concatenate((self.free, np.empty(capacity - len(self.free), np.int64)))
        self.capacity = capacity


_COLUMNS = (
    "parent",
    "site",
    "instance",
    "todo",
    "depth",
    "count",
    "key",
    "children",
    "pending",
    "slots",
)
