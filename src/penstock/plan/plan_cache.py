"""Plans that are kept by the digest of what they depend on: of recorded flushes, and of calls.

The key of a flush is a digest of what shapes its plan and of all flushes before it in its scope, so
equal keys mean equal states of the planner as well. Instances, seeds and random draws are no part
of it: a plan names records, and who runs it looks them up. Cached arrays are never written to.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b
from threading import Lock
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from penstock.plan.step_launches import Plan
from penstock.plan.value_table import State

if TYPE_CHECKING:
    from penstock.plan.recorded import Recorded

#: What an object of a plan takes besides its arrays, about.
OBJECT_BYTES = 400


class CachedFlush(NamedTuple):
    """The plan of a flush, and the state in which it leaves the planner."""

    plan: Plan
    state: State


Kept = TypeVar("Kept")


class BoundedPlans(Generic[Kept]):
    """The plans used last; any number of threads may use it."""

    def __init__(self, most_entries: int = 256, most_bytes: int = 256 << 20) -> None:
        self.most_entries = most_entries
        self.most_bytes = most_bytes
        self.hits = 0
        self.misses = 0
        #: What all entries take, about.
        self.bytes = 0
        #: Entries and their sizes, the one used last at the end.
        self._entries: OrderedDict[bytes, tuple[Kept, int]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: bytes) -> Kept | None:
        """The plan of that digest, if it is known."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                self.misses += 1
                return None
            self.hits += 1
            self._entries.move_to_end(key)
            return found[0]

    def keep(self, key: bytes, plan: Kept, size: int | None = None) -> None:
        """Remember a plan, and forget those used longest ago where it gets too much; `size` in
        bytes, where a plan is more than tuples and arrays.
        """
        if size is None:
            size = size_of(plan)
        if size > self.most_bytes:
            return
        with self._lock:
            known = self._entries.pop(key, None)
            self.bytes += size - (known[1] if known else 0)
            self._entries[key] = plan, size
            while len(self._entries) > self.most_entries or self.bytes > self.most_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self.bytes -= freed

    def clear(self) -> None:
        """Forget all plans; the counts of hits and misses stay."""
        with self._lock:
            self._entries.clear()
            self.bytes = 0


class PlanCache(BoundedPlans[CachedFlush]):
    """The plans of recorded flushes."""


def digest_flush(before: bytes, recorded: Recorded) -> bytes:
    """The digest of a flush, given that of the flushes before it."""
    hasher = blake2b(before, digest_size=16)
    inputs = [(stored, len(values)) for stored, values in recorded.inputs]
    arrays = [recorded.kinds, recorded.operands, recorded.results, recorded.kept, recorded.dropped]
    hasher.update(repr((inputs, [len(array) for array in arrays])).encode())
    for array in [*arrays, *(values for _, values in recorded.inputs)]:
        # no scope has 2**32 values; half the bytes are hashed in half the time
        hasher.update(np.ascontiguousarray(array, np.int32).data)
    return hasher.digest()


def size_of(item: object) -> int:
    """The bytes that tuples and arrays take, about."""
    if isinstance(item, np.ndarray):
        return item.nbytes + OBJECT_BYTES // 4
    if isinstance(item, tuple | list):
        parts: Iterable[object] = item
        return OBJECT_BYTES // 4 + sum(map(size_of, parts))
    return 0
