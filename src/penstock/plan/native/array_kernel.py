"""Arrays in the kernel: tables of slots with copy on write, as in `plan.arrays`.

An array is an entry of the table of sequences whose arena is written as a negative number. Its
elements are listed in the pool; an array that nobody refers to gives them up.
"""

from __future__ import annotations

import numpy as np

from penstock.plan.native import opcodes as op
from penstock.plan.native.arena_kernel import (
    ARENA,
    BASE,
    BUNDLE,
    CAN_GROW,
    LENGTH,
    REFERENCES,
    allocate,
    room,
    room_for_sequences,
)
from penstock.plan.native.compiler import compiled
from penstock.plan.native.launch_kernel import begin_record, put_run, put_values

#: An element that was never written.
UNWRITTEN = -1


@compiled
def room_in_pool(total, pool, sequences, scalars):
    """The pool with room for more elements; those of living arrays move together."""
    if scalars[op.POOL_TOP] + total <= len(pool):
        return pool
    kept = 0
    for number in range(scalars[op.SEQUENCE_TOP]):
        if sequences[ARENA, number] < 0 and sequences[REFERENCES, number] > 0:
            kept += sequences[LENGTH, number]
    bigger = np.empty(max(2 * (kept + total), 1024), np.int64)
    top = 0
    for number in range(scalars[op.SEQUENCE_TOP]):
        if sequences[ARENA, number] < 0 and sequences[REFERENCES, number] > 0:
            base, length = sequences[BASE, number], sequences[LENGTH, number]
            bigger[top : top + length] = pool[base : base + length]
            sequences[BASE, number] = top
            top += length
    scalars[op.POOL_TOP] = top
    return bigger


@compiled
def new_entry(sequences, unused, scalars):
    """A number that nobody uses; there is room for it."""
    if scalars[op.SEQUENCE_FREE]:
        scalars[op.SEQUENCE_FREE] -= 1
        return unused[scalars[op.SEQUENCE_FREE]]
    scalars[op.SEQUENCE_TOP] += 1
    return scalars[op.SEQUENCE_TOP] - 1


@compiled
def new_arrays(arena, lengths, can_grow, heap, into, sequences, unused, pool, scalars):
    """Arrays with nothing written, counted once, their numbers in a register at `into`."""
    count = len(lengths)
    sequences, unused = room_for_sequences(count, sequences, unused, scalars)
    pool = room_in_pool(lengths.sum(), pool, sequences, scalars)
    for k in range(count):
        number, base = new_entry(sequences, unused, scalars), scalars[op.POOL_TOP]
        sequences[BASE, number], sequences[LENGTH, number] = base, lengths[k]
        sequences[REFERENCES, number], sequences[ARENA, number] = 1, -1 - arena
        sequences[CAN_GROW, number] = can_grow[k]
        pool[base : base + lengths[k]] = UNWRITTEN
        scalars[op.POOL_TOP] = base + lengths[k]
        heap[into + k] = number
    return sequences, unused, pool


@compiled
def make_arrays(
    arena, can_grow, values, count, heap, into, sequences, unused, pool, scalars,
):  # fmt: skip
    """Arrays of sizes that rows say; False where one is negative."""
    lengths = heap[values : values + count].copy()
    if count and lengths.min() < 0:
        return False, sequences, unused, pool
    growing = np.full(count, can_grow, np.int64)
    sequences, unused, pool = new_arrays(
        arena, lengths, growing, heap, into, sequences, unused, pool, scalars
    )
    return True, sequences, unused, pool


@compiled
def unstack(arena, values, count, heap, into, arenas, counts, sequences, unused, pool, scalars):
    """Arrays of the elements of sequences."""
    lengths, bases = np.empty(count, np.int64), np.empty(count, np.int64)
    for k in range(count):
        lengths[k] = sequences[LENGTH, heap[values + k]]
        bases[k] = sequences[BASE, heap[values + k]]
    growing = np.zeros(count, np.int64)
    sequences, unused, pool = new_arrays(
        arena, lengths, growing, heap, into, sequences, unused, pool, scalars
    )
    region = arenas[arena, op.REGION]
    for k in range(count):
        base = sequences[BASE, heap[into + k]]
        for element in range(lengths[k]):
            pool[base + element] = bases[k] + element
            counts[region + bases[k] + element] += 1
    return sequences, unused, pool


@compiled
def versions_to_write(
    arrays, index, count, may_steal, heap, into, arenas, counts, sequences, unused, pool, scalars,
):  # fmt: skip
    """Arrays with room for an index, counted once more: the same ones where nobody else refers to
    any of them, else copies; False where an index is outside of its array.
    """
    lengths, growing = np.empty(count, np.int64), np.empty(count, np.int64)
    is_own = may_steal == 1
    for k in range(count):
        number, place = heap[arrays + k], heap[index + k]
        length, growing[k] = sequences[LENGTH, number], sequences[CAN_GROW, number]
        if place < 0 or (place >= length and growing[k] == 0):
            return False, sequences, unused, pool
        lengths[k] = max(length, place + 1)
        is_own = is_own and sequences[REFERENCES, number] == 1 and lengths[k] == length
    if is_own:
        for k in range(count):
            number = heap[arrays + k]
            sequences[REFERENCES, number] += 1
            heap[into + k] = number
        return True, sequences, unused, pool
    if count:
        arena = -1 - sequences[ARENA, heap[arrays]]
        sequences, unused, pool = new_arrays(
            arena, lengths, growing, heap, into, sequences, unused, pool, scalars
        )
        region = arenas[arena, op.REGION]
        for k in range(count):
            old, new = heap[arrays + k], heap[into + k]
            source, target = sequences[BASE, old], sequences[BASE, new]
            for element in range(sequences[LENGTH, old]):
                slot = pool[source + element]
                pool[target + element] = slot
                if slot >= 0:
                    counts[region + slot] += 1
    return True, sequences, unused, pool


@compiled
def write_elements(written, index, slots, count, heap, arenas, counts, sequences, pool):
    """Put elements into arrays that nobody else looks at."""
    for k in range(count):
        number, slot = heap[written + k], heap[slots + k]
        region = arenas[-1 - sequences[ARENA, number], op.REGION]
        place = sequences[BASE, number] + heap[index + k]
        counts[region + slot] += 1
        if pool[place] >= 0:
            counts[region + pool[place]] -= 1
        pool[place] = slot


@compiled
def read_arrays(arrays, index, count, heap, into, sequences, pool):
    """The slots of elements; False where there is none, or none was written."""
    for k in range(count):
        number, place = heap[arrays + k], heap[index + k]
        if place < 0 or place >= sequences[LENGTH, number]:
            return False
        slot = pool[sequences[BASE, number] + place]
        if slot < 0:
            return False
        heap[into + k] = slot
    return True


@compiled
def stack(
    arena, arrays, count, heap, into,
    heads, data, arenas, counts, sequences, unused, pool, chunks, scalars,
):  # fmt: skip
    """Sequences of the elements of arrays, which are copied unless they lie side by side.

    Whether all were written; the first slot of the copy and its size, or -1 and 0.
    """
    sequences, unused = room_for_sequences(count, sequences, unused, scalars)
    total = np.int64(0)
    for k in range(count):
        total += sequences[LENGTH, heap[arrays + k]]
    slots, at, is_run = np.empty(total, np.int64), 0, True
    for k in range(count):
        base, length = sequences[BASE, heap[arrays + k]], sequences[LENGTH, heap[arrays + k]]
        for element in range(length):
            slot = pool[base + element]
            if slot < 0:
                empty = np.int64(-1), np.int64(0)
                return False, *empty, heads, data, counts, sequences, unused, chunks
            slots[at + element] = slot
            is_run = is_run and slot == slots[at] + element
        at += length
    start, copied = np.int64(-1), np.int64(0)
    if not is_run:
        heads = room(heads, scalars[op.HEADS_TOP] + 10)
        data = room(data, scalars[op.DATA_TOP] + total)
        zero, copied = np.int64(0), total
        begin_record(np.int64(op.COPY_RECORD), arena, zero, zero, heads, scalars)
        put_values(slots, zero, total, zero, heads, data, scalars)
        start, counts, chunks = allocate(
            arena, total, np.int64(1), heap, into, arenas, counts, sequences, chunks, scalars
        )
        put_run(start, total, heads, scalars)
    at = 0
    for k in range(count):
        length = sequences[LENGTH, heap[arrays + k]]
        base = at if total == 0 else slots[at if at < total else total - 1]
        number = new_entry(sequences, unused, scalars)
        sequences[BASE, number] = base if is_run else start + at
        sequences[LENGTH, number], sequences[REFERENCES, number] = length, 1
        sequences[ARENA, number], sequences[BUNDLE, number] = arena, -1
        heap[into + k] = number
        at += length
    return True, start, copied, heads, data, counts, sequences, unused, chunks
