"""Rows in the kernel: those that are made, with no value yet, and those that end."""

from __future__ import annotations

import numpy as np

from penstock.plan.native import opcodes as op
from penstock.plan.native.arena_kernel import ARENA, BASE, LENGTH, REFERENCES, room
from penstock.plan.native.compiler import compiled, compiled_at_once, compiled_in_place

#: In the column `SITE` of a loop's rows: the body of this iteration has started.
RUNNING = 1


@compiled_in_place
def new_rows(context, count, heap, into, contexts, waits, frames, free_rows, live, scalars):
    """Frames with no value yet, in a register at `into`; there is room for them."""
    size, todo = contexts[context, op.FRAME_SIZE], contexts[context, op.FIRST_UNDONE]
    slots, slot_count = contexts[context, op.SLOT_START], contexts[context, op.SLOT_COUNT]
    pending, counters = contexts[context, op.PENDING_START], contexts[context, op.PENDING_COUNT]
    first_wait = contexts[context, op.WAITS_START]
    for k in range(count):
        row = free_rows[context]
        if row >= 0:
            free_rows[context] = frames[row + op.PARENT]
        else:
            row = scalars[op.FRAME_TOP]
            scalars[op.FRAME_TOP] += size
        frames[row + op.CONTEXT], frames[row + op.UNDONE] = context, todo
        for column in range(slot_count):
            frames[row + slots + column] = -1
        for counter in range(counters):
            frames[row + pending + counter] = waits[first_wait + counter]
        heap[into + k] = row
    live[context] += count
    scalars[op.LIVE_ROWS] += count
    scalars[op.MOST_LIVE_ROWS] = max(scalars[op.MOST_LIVE_ROWS], scalars[op.LIVE_ROWS])


@compiled
def create(
    rows, count, context, site, child, how, heap, into,
    contexts, waits, frames, free_rows, live, limits, scalars,
):  # fmt: skip
    """New rows for rows: of a callee, of a loop's first or next iteration."""
    if scalars[op.LIVE_ROWS] + count > limits[op.MOST_ROWS] + limits[op.INSTANCES]:
        return False, frames
    frames = room(frames, scalars[op.FRAME_TOP] + count * contexts[context, op.FRAME_SIZE])
    new_rows(context, count, heap, into, contexts, waits, frames, free_rows, live, scalars)
    for k in range(count):
        row, new = heap[rows + k], heap[into + k]
        parent, depth, iteration = row, frames[row + op.DEPTH], 0
        if how == op.CALLED:
            depth += 1
            if depth > limits[op.MOST_DEPTH]:
                return False, frames
        elif how == op.NEXT:
            parent, iteration = frames[row + op.PARENT], frames[row + op.COUNT] + 1
            frames[parent + op.UNDONE] += 1
            frames[row + op.SITE] = RUNNING
        frames[new + op.PARENT], frames[new + op.SITE] = parent, site
        frames[new + op.INSTANCE] = frames[row + op.INSTANCE]
        frames[new + op.DEPTH], frames[new + op.COUNT] = depth, iteration
        if child >= 0:
            frames[row + child] = new
    return True, frames


@compiled_at_once
def start_instances(count, contexts, waits, frames, free_rows, live, scalars):
    """One row of the entry for each instance."""
    rows = np.empty(count, np.int64)
    frames = room(frames, count * contexts[0, op.FRAME_SIZE])
    zero = np.int64(0)
    new_rows(zero, count, rows, zero, contexts, waits, frames, free_rows, live, scalars)
    for instance in range(count):
        row = rows[instance]
        frames[row + op.PARENT] = frames[row + op.INSTANCE] = instance
        frames[row + op.SITE] = frames[row + op.DEPTH] = frames[row + op.COUNT] = 0
        frames[row + op.UNDONE] += 1  # the beginning itself
    return rows, frames


@compiled_in_place
def settle(
    buffer, start, count, contexts, frames, free_rows, live, arenas, counts, sequences, unused,
    pool, scalars,
):  # fmt: skip
    """Rows wait for one thing less: end those that wait for nothing, and then those that waited
    for them.
    """
    for k in range(count):
        row = buffer[start + k]
        frames[row + op.UNDONE] -= 1
        while frames[row + op.UNDONE] == 0:
            context = frames[row + op.CONTEXT]
            frames[row + op.UNDONE] = -1
            first = row + contexts[context, op.SLOT_START]
            for column in range(contexts[context, op.SLOT_COUNT]):
                place, value = (
                    contexts[context, op.CONTEXT_COLUMNS + column],
                    frames[first + column],
                )
                if value < 0:
                    continue
                if place >= 0:
                    if value < arenas[place, op.GIVEN]:
                        continue
                    counts[arenas[place, op.REGION] + value] -= 1
                else:
                    sequences[REFERENCES, value] -= 1
                    if sequences[REFERENCES, value] == 0:
                        unused[scalars[op.SEQUENCE_FREE]] = value
                        scalars[op.SEQUENCE_FREE] += 1
                        if sequences[ARENA, value] < 0:
                            region = arenas[-1 - sequences[ARENA, value], op.REGION]
                            base = sequences[BASE, value]
                            for element in range(base, base + sequences[LENGTH, value]):
                                if pool[element] >= 0:
                                    counts[region + pool[element]] -= 1
            parent = frames[row + op.PARENT]
            frames[row + op.PARENT] = free_rows[context]
            free_rows[context] = row
            live[context] -= 1
            scalars[op.LIVE_ROWS] -= 1
            if context == 0:
                break
            frames[parent + op.UNDONE] -= 1
            row = parent
