"""Slots and sequences in the kernel: allocation, reference counts and reuse, as in `plan.slots`.

An arena has a region of `counts`: the references to each slot, then its list of free slots. The
table of sequences has columns of (base, length, references, arena, bundle, row of the bundle) for
all arenas together, with arrays among them; their numbers are nowhere seen.
"""

from __future__ import annotations

import numpy as np

from penstock.plan.native import opcodes as op
from penstock.plan.native.compiler import compiled, compiled_at_once, compiled_in_place

BASE, LENGTH, REFERENCES, ARENA, BUNDLE, BUNDLE_ROW, ENTRY = range(7)

#: Of an array: whether a write beyond the end makes it longer.
CAN_GROW = BUNDLE


@compiled
def room(array, size):
    """The array, or a larger copy with room for `size` entries."""
    if size <= len(array):
        return array
    bigger = np.empty(max(size, 2 * len(array)), np.int64)
    bigger[: len(array)] = array
    return bigger


@compiled_in_place
def refer(place, values, start, count, amount, arenas, counts, sequences, unused, pool, scalars):
    """Count references to slots, sequences or arrays; what nobody refers to is given up, with the
    elements of an array.
    """
    if place >= 0:
        region = arenas[place, op.REGION]
        for k in range(start, start + count):
            if values[k] >= 0:
                counts[region + values[k]] += amount
    elif place == op.IN_SEQUENCES:
        for k in range(start, start + count):
            value = values[k]
            if value >= 0:
                sequences[REFERENCES, value] += amount
                if sequences[REFERENCES, value] == 0:
                    unused[scalars[op.SEQUENCE_FREE]] = value
                    scalars[op.SEQUENCE_FREE] += 1
                    if sequences[ARENA, value] < 0:
                        region = arenas[-1 - sequences[ARENA, value], op.REGION]
                        base = sequences[BASE, value]
                        for element in range(base, base + sequences[LENGTH, value]):
                            if pool[element] >= 0:
                                counts[region + pool[element]] -= 1


@compiled
def grow_arena(number, size, arenas, counts, chunks, scalars):
    """One more chunk of an arena; its counts and free slots move to a larger region."""
    start = arenas[number, op.STOP]
    stop = start + size
    old, new = arenas[number, op.REGION], scalars[op.COUNTS_TOP]
    counts = room(counts, new + 2 * stop)
    counts[new : new + start] = counts[old : old + start]
    counts[new + start : new + stop] = 0
    free = arenas[number, op.FREE]
    counts[new + stop : new + stop + free] = counts[old + start : old + start + free]
    scalars[op.COUNTS_TOP] = new + 2 * stop
    arenas[number, op.STOP], arenas[number, op.REGION] = stop, new
    arenas[number, op.TOP] = start
    chunks = room(chunks, scalars[op.CHUNKS_TOP] + 4)
    at = scalars[op.CHUNKS_TOP]
    chunks[at], chunks[at + 1] = scalars[op.PERIOD], number
    chunks[at + 2], chunks[at + 3] = start, size
    scalars[op.CHUNKS_TOP] = at + 4
    return counts, chunks


@compiled
def collect(number, arenas, counts, sequences, scalars):
    """Find the free slots of an arena, all but the rest of its last chunk."""
    stop, region = arenas[number, op.STOP], arenas[number, op.REGION]
    used = np.zeros(stop, np.bool_)
    for slot in range(stop):
        used[slot] = counts[region + slot] > 0
    for sequence in range(scalars[op.SEQUENCE_TOP]):
        if sequences[ARENA, sequence] == number and sequences[REFERENCES, sequence] > 0:
            base = sequences[BASE, sequence]
            used[base : base + sequences[LENGTH, sequence]] = True
    used[arenas[number, op.TOP] : stop] = True
    found = 0
    for slot in range(stop):
        if not used[slot]:
            counts[region + stop + found] = slot
            found += 1
    arenas[number, op.FREE], arenas[number, op.TAKEN] = found, 0


@compiled
def find_run(number, count, arenas, counts):
    """Take consecutive slots out of the free ones; the first of them, or -1."""
    first = arenas[number, op.REGION] + arenas[number, op.STOP]
    free, taken, width = arenas[number, op.FREE], arenas[number, op.TAKEN], count - 1
    for position in range(taken, free - width):
        start = counts[first + position]
        if counts[first + position + width] - start == width:
            kept = 0
            for other in range(taken, free):
                if other < position or other >= position + count:
                    counts[first + kept] = counts[first + other]
                    kept += 1
            arenas[number, op.FREE], arenas[number, op.TAKEN] = kept, 0
            return start
    return -1


@compiled
def reuse(number, count, as_run, out, into, arenas, counts, sequences, scalars):
    """Slots that are free again: the first of a run; -2 for slots listed in `out`; -1 for none."""
    is_stale = arenas[number, op.TAKEN] + count <= arenas[number, op.FREE]
    if not is_stale:
        collect(number, arenas, counts, sequences, scalars)
        free = arenas[number, op.FREE]
        if 2 * free < arenas[number, op.STOP] - arenas[number, op.LEFT_OUT] or count > free:
            arenas[number, op.FREE], arenas[number, op.TAKEN] = 0, 0
            return -1
    first = arenas[number, op.REGION] + arenas[number, op.STOP] + arenas[number, op.TAKEN]
    start = counts[first]
    if counts[first + count - 1] - start == count - 1:
        arenas[number, op.TAKEN] += count
        return start
    start = find_run(number, count, arenas, counts)
    if start < 0 and as_run == 1 and is_stale:
        collect(number, arenas, counts, sequences, scalars)
        start = find_run(number, count, arenas, counts)
    if start >= 0 or as_run == 1:
        return start
    first = arenas[number, op.REGION] + arenas[number, op.STOP] + arenas[number, op.TAKEN]
    for position in range(count):
        slot = counts[first + position]
        out[into + position] = slot
        counts[arenas[number, op.REGION] + slot] = 1
    arenas[number, op.TAKEN] += count
    return -2


@compiled
def allocate(number, count, as_run, out, into, arenas, counts, sequences, chunks, scalars):
    """Slots for new values, counted once each: the first of a run, or -2 for slots in `out`."""
    start = -1
    if arenas[number, op.TOP] + count > arenas[number, op.STOP]:
        start = reuse(number, count, as_run, out, into, arenas, counts, sequences, scalars)
        if start == -1:
            made = arenas[number, op.STOP] - arenas[number, op.LEFT_OUT]
            size = max(count, made, arenas[number, op.FIRST_CHUNK])
            counts, chunks = grow_arena(number, size, arenas, counts, chunks, scalars)
    if start == -1:
        start = arenas[number, op.TOP]
        arenas[number, op.TOP] = start + count
    if start >= 0:
        region = arenas[number, op.REGION]
        counts[region + start : region + start + count] = 1
    return start, counts, chunks


@compiled_at_once
def allocate_for_host(
    number, count, as_run, heap, into, arenas, counts, sequences, chunks, scalars,
):  # fmt: skip
    """The same, asked from outside."""
    return allocate(number, count, as_run, heap, into, arenas, counts, sequences, chunks, scalars)


@compiled
def new_sequences(arena, start, lengths, heap, top, sequences, unused, scalars):
    """Sequences of consecutive elements, counted once, their numbers in a register at `top`."""
    base = start
    for position in range(len(lengths)):
        if scalars[op.SEQUENCE_FREE]:
            scalars[op.SEQUENCE_FREE] -= 1
            number = unused[scalars[op.SEQUENCE_FREE]]
        else:
            number = scalars[op.SEQUENCE_TOP]
            scalars[op.SEQUENCE_TOP] += 1
        sequences[BASE, number], sequences[LENGTH, number] = base, lengths[position]
        sequences[REFERENCES, number], sequences[ARENA, number] = 1, arena
        sequences[BUNDLE, number] = -1
        heap[top + position] = number
        base += lengths[position]


@compiled
def room_for_sequences(count, sequences, unused, scalars):
    """The table of sequences with room for more."""
    size = scalars[op.SEQUENCE_TOP] + count
    if size <= sequences.shape[1]:
        return sequences, unused
    capacity = max(size, 2 * sequences.shape[1])
    bigger = np.empty((ENTRY, capacity), np.int64)
    bigger[:, : sequences.shape[1]] = sequences
    return bigger, room(unused, capacity)
