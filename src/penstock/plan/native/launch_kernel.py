"""Launches in the kernel: operands and results of a block become records.

`heads` has the shape of records, `data` the integers that they list. A launch is its block, its
rows, where the instances are, and three numbers for each operand and result: how it is given, and
start and count.
"""

from __future__ import annotations

import numpy as np

from penstock.plan.native import opcodes as op
from penstock.plan.native.arena_kernel import (
    BASE,
    BUNDLE,
    BUNDLE_ROW,
    LENGTH,
    allocate,
    new_sequences,
    room,
    room_for_sequences,
)
from penstock.plan.native.compiler import compiled, compiled_in_place

#: What is counted until it has arrived: slots of a register, a run of slots, sequences.
HELD_SLOTS, HELD_RUN, HELD_SEQUENCES = range(3)


@compiled_in_place
def put_values(values, start, count, is_host, heads, data, scalars):
    """Say what an operand is: a run where its slots are consecutive, else a list of them."""
    at = scalars[op.HEADS_TOP]
    scalars[op.HEADS_TOP] = at + 3
    is_run = is_host == 0 and count > 0
    for position in range(1, count if is_run else 0):
        if values[start + position] != values[start] + position:
            is_run = False
            break
    heads[at + 2] = count
    if is_run:
        heads[at], heads[at + 1] = op.SPAN_VALUES, values[start]
        return
    top = scalars[op.DATA_TOP]
    for position in range(count):
        data[top + position] = values[start + position]
    scalars[op.DATA_TOP] = top + count
    heads[at], heads[at + 1] = op.LISTED_VALUES, top


@compiled_in_place
def put_column(rows, count, offset, frames, heap, heads, data, scalars):
    """The same for slots that rows keep in their frames."""
    at, top = scalars[op.HEADS_TOP], scalars[op.DATA_TOP]
    scalars[op.HEADS_TOP] = at + 3
    first = frames[heap[rows] + offset] if count else 0
    is_run = count > 0
    for position in range(count):
        slot = frames[heap[rows + position] + offset]
        data[top + position] = slot
        is_run = is_run and slot == first + position
    heads[at + 2] = count
    if is_run:
        heads[at], heads[at + 1] = op.SPAN_VALUES, first
        return
    scalars[op.DATA_TOP] = top + count
    heads[at], heads[at + 1] = op.LISTED_VALUES, top


@compiled_in_place
def put_run(start, count, heads, scalars):
    """Say that slots are a run."""
    at = scalars[op.HEADS_TOP]
    heads[at], heads[at + 1], heads[at + 2] = op.SPAN_VALUES, start, count
    scalars[op.HEADS_TOP] = at + 3


@compiled_in_place
def begin_record(name, first, second, third, heads, scalars):
    """The beginning of a record."""
    at = scalars[op.HEADS_TOP]
    heads[at], heads[at + 1], heads[at + 2], heads[at + 3] = name, first, second, third
    scalars[op.HEADS_TOP] = at + 4
    scalars[op.RECORDS] += 1


@compiled
def hold(kind, arena, start, count, held, held_top):
    """Remember what must be given up once it has arrived."""
    held = room(held, held_top + 4)
    held[held_top], held[held_top + 1] = kind, arena
    held[held_top + 2], held[held_top + 3] = start, count
    return held


@compiled
def allocate_slots(
    arena, count, heap, top, heads, data, arenas, counts, sequences, chunks, scalars
):
    """Fresh slots in a register at `top`, and the record of them."""
    start, counts, chunks = allocate(
        arena, count, np.int64(0), heap, top, arenas, counts, sequences, chunks, scalars
    )
    if start >= 0:
        put_run(start, count, heads, scalars)
        for position in range(count):
            heap[top + position] = start + position
    else:
        at, into = scalars[op.HEADS_TOP], scalars[op.DATA_TOP]
        heads[at], heads[at + 1], heads[at + 2] = op.LISTED_VALUES, into, count
        data[into : into + count] = heap[top : top + count]
        scalars[op.HEADS_TOP], scalars[op.DATA_TOP] = at + 3, into + count
    return counts, chunks


@compiled
def lengths_of(spec, listed, count, lists, starts, heap, sequences, out):
    """The length of each row's sequences, in `out`; their sum, or -1 where they differ."""
    is_first, total = True, 0
    for k in range(lists[spec + 2]):
        if lists[spec + 4 + 2 * k] != op.SEQUENCE_OPERAND:
            continue
        start = starts[lists[listed + k]]
        for position in range(count):
            length = sequences[LENGTH, heap[start + position]]
            if is_first:
                out[position] = length
                total += length
            elif out[position] != length:
                return -1
        is_first = False
    return total


@compiled
def put_elements(kind, start, lengths, heap, sequences, heads, data, scalars, scratch):
    """An operand of a flat launch: the elements of sequences, or values repeated for each."""
    at = np.int64(0)
    for position in range(len(lengths)):
        value = heap[start + position]
        if kind == op.SEQUENCE_OPERAND:
            base = sequences[BASE, value]
            for element in range(lengths[position]):
                scratch[at] = base + element
                at += 1
        else:
            for _ in range(lengths[position]):
                scratch[at] = value
                at += 1
    is_host = np.int64(kind == op.HOST_OPERAND)
    put_values(scratch, np.int64(0), at, is_host, heads, data, scalars)


@compiled_in_place
def put_instances(rows, count, lengths, total, heap, frames, data, scalars):
    """The instance of each row, or of each element of each row."""
    top = scalars[op.DATA_TOP]
    scalars[op.DATA_TOP] = top + total
    at = top
    for position in range(count):
        instance = frames[heap[rows + position] + op.INSTANCE]
        repeat = 1 if len(lengths) == 0 else lengths[position]
        for _ in range(repeat):
            data[at] = instance
            at += 1
    return top


@compiled
def launch(
    spec, listed, rows, count, first, top,
    lists, starts, sizes, heap, frames, heads, data, arenas, counts, sequences, unused, chunks,
    held, held_top, scalars,
):  # fmt: skip
    """A launch for rows, its results in registers from `first` on; False where lengths differ."""
    operands, targets = lists[spec + 2], lists[spec + 3]
    is_flat = lists[spec + 1] == 1
    lengths = np.empty(count if is_flat else 0, np.int64)
    total = count
    if is_flat:
        total = lengths_of(spec, listed, count, lists, starts, heap, sequences, lengths)
        if total < 0:
            return False, top, heap, heads, data, counts, sequences, unused, chunks, held, held_top
    heads = room(heads, scalars[op.HEADS_TOP] + 4 + 3 * (operands + targets))
    data = room(data, scalars[op.DATA_TOP] + total * (1 + operands + targets))
    heap = room(heap, top + count * targets)
    before = scalars[op.HEADS_TOP], scalars[op.DATA_TOP]
    instances = put_instances(rows, count, lengths, total, heap, frames, data, scalars)
    begin_record(np.int64(op.LAUNCH_RECORD), lists[spec], total, instances, heads, scalars)
    scratch = np.empty(total if is_flat else 0, np.int64)
    for k in range(operands):
        kind, register = lists[spec + 4 + 2 * k], lists[listed + k]
        if register < 0:
            put_column(rows, count, -1 - register, frames, heap, heads, data, scalars)
            continue
        start = starts[register]
        if is_flat:
            put_elements(kind, start, lengths, heap, sequences, heads, data, scalars, scratch)
        else:
            is_host = np.int64(kind == op.HOST_OPERAND)
            put_values(heap, start, count, is_host, heads, data, scalars)
    if is_flat:
        sequences, unused = room_for_sequences(count * targets, sequences, unused, scalars)
    for k in range(targets):
        arena = lists[spec + 4 + 2 * operands + k]
        starts[first + k], sizes[first + k] = top, count
        if is_flat:
            start, counts, chunks = allocate(
                arena, total, np.int64(1), heap, top, arenas, counts, sequences, chunks, scalars
            )
            put_run(start, total, heads, scalars)
            new_sequences(arena, start, lengths, heap, top, sequences, unused, scalars)
            held = hold(np.int64(HELD_RUN), arena, start, total, held, held_top)
            held = hold(np.int64(HELD_SEQUENCES), arena, top, count, held, held_top + 4)
            held_top += 8
        else:
            counts, chunks = allocate_slots(
                arena, count, heap, top, heads, data, arenas, counts, sequences, chunks, scalars
            )
            held = hold(np.int64(HELD_SLOTS), arena, top, count, held, held_top)
            held_top += 4
        top += count
    if total == 0:  # nothing to run
        scalars[op.HEADS_TOP], scalars[op.DATA_TOP] = before
        scalars[op.RECORDS] -= 1
    return True, top, heap, heads, data, counts, sequences, unused, chunks, held, held_top


@compiled
def has_padded_copies(padded, sequence, count, least, heap, sequences):
    """Whether sequences of different lengths, none of them too short, have padded copies that lie
    side by side.
    """
    if padded < 0:
        return False
    first = heap[sequence]
    bundle, row = sequences[BUNDLE, first], sequences[BUNDLE_ROW, first]
    is_equal = True
    for k in range(count):
        number = heap[sequence + k]
        if sequences[BUNDLE, number] != bundle or sequences[BUNDLE_ROW, number] != row + k:
            return False
        if sequences[LENGTH, number] < least:
            return False
        is_equal = is_equal and sequences[LENGTH, number] == sequences[LENGTH, first]
    return bundle >= 0 and not is_equal


@compiled
def launch_padded(
    spec, listed, rows, count, first, top,
    lists, starts, sizes, heap, frames, heads, data, arenas, counts, sequences, chunks,
    held, held_top, scalars,
):  # fmt: skip
    """A launch of the padded form, its results in registers from `first` on."""
    padded, which = lists[spec + op.PADDED_FORM], lists[spec + op.SEQUENCE]
    spec += op.SPECIFICATION
    operands, targets = lists[spec + 2], lists[spec + 3]
    heads = room(heads, scalars[op.HEADS_TOP] + op.PADDED_HEAD + 3 * (operands + 1 + targets))
    data = room(data, scalars[op.DATA_TOP] + count * (2 + operands + targets))
    heap = room(heap, top + count * targets)
    zero, one = np.int64(0), np.int64(1)
    none = np.empty(0, np.int64)
    instances = put_instances(rows, count, none, count, heap, frames, data, scalars)
    begin_record(np.int64(op.PADDED_RECORD), lists[spec], count, instances, heads, scalars)
    sequence = starts[lists[listed + which]]
    lengths = np.empty(count, np.int64)
    for k in range(count):
        lengths[k] = sequences[LENGTH, heap[sequence + k]]
    at = scalars[op.HEADS_TOP]
    heads[at], heads[at + 2] = padded, which
    heads[at + 1] = arenas.shape[0] - 1 + sequences[BUNDLE, heap[sequence]]
    scalars[op.HEADS_TOP] = at + 3
    for k in range(operands):
        if k == which:
            put_run(sequences[BUNDLE_ROW, heap[sequence]], count, heads, scalars)
        else:
            is_host = np.int64(lists[spec + 4 + 2 * k] == op.HOST_OPERAND)
            put_values(heap, starts[lists[listed + k]], count, is_host, heads, data, scalars)
    put_values(lengths, zero, count, one, heads, data, scalars)
    for k in range(targets):
        arena = lists[spec + 4 + 2 * operands + k]
        starts[first + k], sizes[first + k] = top, count
        counts, chunks = allocate_slots(
            arena, count, heap, top, heads, data, arenas, counts, sequences, chunks, scalars
        )
        held = hold(np.int64(HELD_SLOTS), arena, top, count, held, held_top)
        held_top += 4
        top += count
    return top, heap, heads, data, counts, chunks, held, held_top


@compiled
def upload(
    count, register, arena, dst, top,
    starts, sizes, heap, heads, data, arenas, counts, sequences, chunks, held, held_top, scalars,
):  # fmt: skip
    """Host values get slots, in the register `dst`."""
    heads = room(heads, scalars[op.HEADS_TOP] + 10)
    data = room(data, scalars[op.DATA_TOP] + 2 * count)
    heap = room(heap, top + count)
    zero, one = np.int64(0), np.int64(1)
    begin_record(np.int64(op.STORE_RECORD), arena, count, zero, heads, scalars)
    put_values(heap, starts[register], count, one, heads, data, scalars)
    counts, chunks = allocate_slots(
        arena, count, heap, top, heads, data, arenas, counts, sequences, chunks, scalars
    )
    held = hold(np.int64(HELD_SLOTS), arena, top, count, held, held_top)
    starts[dst], sizes[dst] = top, count
    return heap, heads, data, counts, chunks, held
