"""What an event sets off, as long as there is room for it: most instructions make no arrays.

In the loop of the kernel arrays may become larger ones, so that references to all of them are
counted in every round. Here they stay what they are.
"""

from __future__ import annotations

import numpy as np

from penstock.plan.native import opcodes as op
from penstock.plan.native.arena_kernel import BASE, LENGTH, refer
from penstock.plan.native.array_kernel import read_arrays
from penstock.plan.native.compiler import compiled_in_place
from penstock.plan.native.queue_kernel import append_batch, mark_ready
from penstock.plan.native.value_kernel import (
    calculate,
    read_elements,
    split,
    store_elements,
)


@compiled_in_place
def follow(
    pc, top, move, moves_top, arrived_top, is_waiting,
    code, lists, nodes, groups, registers, instance_values, table_base, table_length, table_values,
    scalars, frames, queue, queue_head, queue_tail, queue_width, control, expanding, in_data,
    arenas, counts, sequences, unused, pool, results, heap, moves, arrived, starts, sizes, steps,
):  # fmt: skip
    """Carry out instructions up to one that may make arrays, or that there is no room for, or up to
    the end of all pieces; whether none has failed, and the state then. Where more results are to
    arrive (`is_waiting`), the end of a piece is the end.
    """
    zero, one = np.int64(0), np.int64(1)
    is_sound = True
    while is_sound:
        name, dst, rows = code[pc], code[pc + 1], code[pc + 2]
        a, b, c, d = code[pc + 3], code[pc + 4], code[pc + 5], code[pc + 6]
        if name == op.END:
            if move == moves_top or is_waiting:
                break
            pc, first, n = groups[moves[move]], op.ROWS_REGISTER, moves[move + 1]
            starts[first], sizes[first] = moves[move + 2], n
            for k in range(moves[move + 3]):
                starts[first + 1 + k], sizes[first + 1 + k] = moves[move + 4 + k], n
            move += 4 + moves[move + 3]
            continue
        n, at = sizes[rows], starts[rows]
        has_room = top + n <= len(heap) and scalars[op.QUEUE_TOP] + n + 2 <= len(queue)
        has_room = has_room and moves_top + 4 + registers <= len(moves)
        if name >= op.FIRST_TO_MAKE or not has_room or arrived_top + n > len(arrived):
            break
        pc += op.WIDTH
        if name == op.SKIP_EMPTY:
            if n == 0:
                pc = a
            continue
        if name == op.COLUMN:
            for k in range(n):
                heap[top + k] = frames[heap[at + k] + a]
        elif name == op.INPUT:
            for k in range(n):
                heap[top + k] = instance_values[a, frames[heap[at + k] + op.INSTANCE]]
        elif name == op.HOST:
            is_sound = calculate(
                a, n, heap, top, starts[b], steps[b], starts[c], steps[c], starts[d], steps[d]
            )
        elif name == op.READ_TABLE:
            is_sound = read_elements(
                name, n, heap, starts[a], starts[b], steps[b], top,
                table_base, table_length, table_values,
            )  # fmt: skip
        elif name == op.TABLE_LENGTH:
            for k in range(n):
                heap[top + k] = table_length[heap[starts[a] + k]]
        elif name == op.ELEMENT:
            is_sound = read_elements(
                name, n, heap, starts[a], starts[b], steps[b], top,
                sequences[BASE], sequences[LENGTH], table_values,
            )  # fmt: skip
        elif name == op.LENGTH:
            for k in range(n):
                heap[top + k] = sequences[LENGTH, heap[starts[a] + k]]
        elif name == op.AT_SITE:
            found = zero
            for k in range(n):
                if frames[heap[at + k] + op.SITE] == a:
                    heap[top + found] = k
                    found += 1
            n = found
        elif name == op.TAKE:
            for k in range(n):
                heap[top + k] = heap[starts[a] + heap[at + k]]
        elif name == op.COUNT_DOWN:
            found = zero
            for k in range(n):
                cell = heap[at + k] + a
                frames[cell] -= c
                if frames[cell] == 0:
                    heap[top + found] = heap[at + k]
                    found += 1
            n = found
            if n:
                if queue_head[b] < 0:
                    mark_ready(b, nodes, control, expanding, in_data, scalars)
                append_batch(b, heap, top, n, queue, queue_head, queue_tail, queue_width, scalars)
        elif name == op.SPLIT:
            is_sound, top = split(at, n, starts[a], steps[a], b, c, heap, top, dst, starts, sizes)
            continue
        elif name == op.STORE:
            for k in range(n):
                frames[heap[at + k] + a] = heap[starts[b] + k]
            continue
        elif name == op.STORE_SLOT:
            for k in range(n):
                frames[heap[at + k] + a] = heap[starts[b] + k]
            refer(c, heap, starts[b], n, one, arenas, counts, sequences, unused, pool, scalars)
            continue
        elif name == op.STORE_ELEMENTS:
            is_sound = store_elements(
                at, n, starts[a], b, c, d, heap, lists, starts, steps, frames,
                arenas, counts, sequences[BASE], sequences[LENGTH],
            )  # fmt: skip
            continue
        elif name == op.ENQUEUE:
            if n:
                if queue_head[a] < 0:
                    mark_ready(a, nodes, control, expanding, in_data, scalars)
                append_batch(a, heap, at, n, queue, queue_head, queue_tail, queue_width, scalars)
            continue
        elif name == op.WAIT:
            for k in range(n):
                frames[heap[at + k] + op.UNDONE] += a
            continue
        elif name == op.MOVE:
            moves[moves_top], moves[moves_top + 1], moves[moves_top + 2] = a, n, at
            moves[moves_top + 3] = c
            for k in range(c):
                moves[moves_top + 4 + k] = starts[lists[b + k]]
            moves_top += 4 + c
            continue
        elif name == op.FINISH:
            for k in range(n):
                results[a, frames[heap[at + k] + op.INSTANCE]] = heap[starts[b] + k]
            refer(c, heap, starts[b], n, one, arenas, counts, sequences, unused, pool, scalars)
            continue
        elif name == op.LOOSE:
            for k in range(n):
                arrived[arrived_top + k] = heap[at + k]
            arrived_top += n
            continue
        elif name == op.FIRED:
            scalars[op.FIRINGS] += 1
            continue
        else:
            is_sound = read_arrays(starts[a], starts[b], n, heap, top, sequences, pool)
        starts[dst], sizes[dst] = top, n
        top += n
    return is_sound, pc, top, move, moves_top, arrived_top
