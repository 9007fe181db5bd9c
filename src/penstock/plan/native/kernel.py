"""The loop of the kernel: picks the node that fires next and carries out its code.

It fires what the plain machine fires, for the same rows in the same order. All state is in arrays,
so that it can stop after a window of launches and go on later. One long function, because arrays
that grow are its local variables, and a call counts references to every array that it is given.
"""

from __future__ import annotations

import numpy as np

from penstock.plan.native import opcodes as op
from penstock.plan.native.arena_kernel import refer, room
from penstock.plan.native.array_kernel import (
    make_arrays,
    stack,
    unstack,
    versions_to_write,
    write_elements,
)
from penstock.plan.native.compiler import borrowed, compiled_at_once
from penstock.plan.native.follow_kernel import follow
from penstock.plan.native.launch_kernel import (
    HELD_RUN,
    HELD_SEQUENCES,
    has_padded_copies,
    hold,
    launch,
    launch_padded,
    upload,
)
from penstock.plan.native.queue_kernel import (
    admissible,
    deepest,
    most_urgent,
    remove_expanding,
    room_in_queues,
    take_all,
    take_some,
)
from penstock.plan.native.row_kernel import create, settle
from penstock.plan.native.value_kernel import longest_first


@compiled_at_once
def advance(
    code, lists, nodes, contexts, groups, waits, constants, registers, limits,
    instance_values, table_base, table_length, table_values,
    scalars, frames, free_rows, live,
    queue, queue_head, queue_tail, queue_width, control, expanding, in_data,
    arenas, counts, sequences, unused, pool, results, heads, data, chunks, heap,
    moves, held, arrived,
):  # fmt: skip
    """Plan until nothing is left, a window is full, or the host must plan launches."""
    (
        code, lists, nodes, contexts, groups, waits, constants, limits,
        instance_values, table_base, table_length, table_values,
        scalars, frames, free_rows, live,
        queue, queue_head, queue_tail, queue_width, control, expanding, in_data,
        arenas, counts, sequences, unused, pool, results, heads, data, chunks, heap,
        moves, held, arrived,
    ) = borrowed((
        code, lists, nodes, contexts, groups, waits, constants, limits,
        instance_values, table_base, table_length, table_values,
        scalars, frames, free_rows, live,
        queue, queue_head, queue_tail, queue_width, control, expanding, in_data,
        arenas, counts, sequences, unused, pool, results, heads, data, chunks, heap,
        moves, held, arrived,
    ))  # fmt: skip
    starts, sizes = np.zeros(registers, np.int64), np.zeros(registers, np.int64)
    steps = np.ones(registers, np.int64)
    for k in range(min(len(constants), op.ROWS_REGISTER)):
        heap[k], starts[k], steps[k] = constants[k], k, 0
    # numbers of one type: a function is compiled anew for each literal that it is given
    zero, one = np.int64(0), np.int64(1)
    first_record = scalars[op.RECORDS]
    status, how = op.DONE, scalars[op.HOW]
    while True:
        is_asked = False
        if how == op.AFRESH:
            # ---- who fires next
            most = -1
            if scalars[op.CONTROL_COUNT]:
                node = control[scalars[op.CONTROL_HEAD]]
                scalars[op.CONTROL_HEAD] = (scalars[op.CONTROL_HEAD] + 1) % len(control)
                scalars[op.CONTROL_COUNT] -= 1
            else:
                position = admissible(nodes, contexts, live, limits, expanding, in_data, scalars)
                if position >= 0:
                    node = expanding[position]
                    remove_expanding(position, expanding, scalars)
                else:
                    node = most_urgent(nodes, in_data, queue_width)
                    if node >= 0:
                        in_data[node] = 0
                        scalars[op.PERIOD] = scalars[op.RECORDS]
                    elif scalars[op.EXPANDING_COUNT]:
                        position = deepest(frames, queue, queue_tail, expanding, scalars)
                        node = expanding[position]
                        space = (limits[op.MOST_ROWS] - scalars[op.LIVE_ROWS]) >> 10
                        most = max(1, min(limits[op.ADMITTED], space))
                    else:
                        break
            count = queue_width[node]
            heap = room(heap, op.ROWS_REGISTER + count)
            starts[op.ROWS_REGISTER] = op.ROWS_REGISTER
            if most < 0:
                take_all(node, heap, op.ROWS_REGISTER, queue, queue_head, queue_width)
            else:
                is_loop = contexts[nodes[node, op.NODE_CONTEXT], op.IS_LOOP]
                count = take_some(
                    node, most, is_loop, heap, op.ROWS_REGISTER,
                    queue, queue_head, queue_tail, queue_width,
                )  # fmt: skip
                if queue_head[node] < 0:
                    remove_expanding(position, expanding, scalars)
            sizes[op.ROWS_REGISTER] = count
            top = op.ROWS_REGISTER + count
            scalars[op.FIRINGS] += 1
            # ---- what it does, and then what arrives further up
            pc = nodes[node, op.NODE_SEGMENT]
            move, moves_top, held_top, arrived_top = zero, zero, zero, zero
        else:
            # ---- results of launches that the host has planned arrive
            pc, node, count = scalars[op.ASKED_AT], scalars[op.ASKED_NODE], scalars[op.ASKED_COUNT]
            move, moves_top = zero, scalars[op.MOVES_TOP]
            held_top, arrived_top = scalars[op.HELD_TOP], scalars[op.ARRIVED_TOP]
            top, n = scalars[op.HEAP_TOP], scalars[op.GIVEN_ROWS]
            starts[op.ROWS_REGISTER], sizes[op.ROWS_REGISTER] = top, n
            for k in range(code[pc + 5]):
                top += n
                starts[code[pc + 1] + k], sizes[code[pc + 1] + k] = top, n
            top += n
            pc += op.WIDTH
        is_sound = True
        while is_sound:
            is_sound, pc, top, move, moves_top, arrived_top = follow(
                pc, top, move, moves_top, arrived_top, how == op.WITH_MORE,
                code, lists, nodes, groups, registers,
                instance_values, table_base, table_length, table_values, scalars, frames,
                queue, queue_head, queue_tail, queue_width, control, expanding, in_data,
                arenas, counts, sequences, unused, pool, results, heap, moves, arrived,
                starts, sizes, steps,
            )  # fmt: skip
            name, dst, rows = code[pc], code[pc + 1], code[pc + 2]
            if name == op.END or not is_sound:
                is_asked = how == op.WITH_MORE
                break
            a, b, c, d = code[pc + 3], code[pc + 4], code[pc + 5], code[pc + 6]
            n, at = sizes[rows], starts[rows]
            heap, arrived = room(heap, top + n), room(arrived, arrived_top + n)
            moves = room(moves, moves_top + 4 + registers)
            queue = room_in_queues(n, queue, queue_head, queue_tail, scalars)
            if name < op.FIRST_TO_MAKE:
                continue
            pc += op.WIDTH
            if name == op.ASK:
                if d >= 0 and has_padded_copies(
                    lists[d + op.PADDED_FORM], starts[lists[a + lists[d + op.SEQUENCE]]], n,
                    lists[d + op.LEAST_LENGTH], heap, sequences,
                ):  # fmt: skip
                    top, heap, heads, data, counts, chunks, held, held_top = launch_padded(
                        d, a, at, n, dst, top,
                        lists, starts, sizes, heap, frames, heads, data, arenas, counts,
                        sequences, chunks, held, held_top, scalars,
                    )  # fmt: skip
                    continue
                heap = room(heap, top + b)
                for k in range(b):
                    heap[top + k] = starts[lists[a + k]]
                scalars[op.ASKED_AT], scalars[op.ASKED_NODE] = pc - op.WIDTH, node
                scalars[op.ASKED_COUNT] = count
                is_asked = True
                break
            if name == op.CREATE:
                is_sound, frames = create(
                    at, n, a, b, c, d, heap, top,
                    contexts, waits, frames, free_rows, live, limits, scalars,
                )  # fmt: skip
            elif name == op.LONGEST_FIRST:
                longest_first(heap, starts[a], starts[b], n, top)
            elif name == op.LAUNCH:
                (
                    is_sound, top, heap, heads, data, counts, sequences, unused, chunks,
                    held, held_top,
                ) = launch(
                    a, b, at, n, dst, top,
                    lists, starts, sizes, heap, frames, heads, data, arenas, counts,
                    sequences, unused, chunks, held, held_top, scalars,
                )  # fmt: skip
                continue
            elif name == op.ARRAY_NEW:
                is_sound, sequences, unused, pool = make_arrays(
                    b, c, starts[a], n, heap, top, sequences, unused, pool, scalars
                )
                held = hold(np.int64(HELD_SEQUENCES), zero, top, n, held, held_top)
                held_top += 4
            elif name == op.ARRAY_WRITE:
                is_sound, sequences, unused, pool = versions_to_write(
                    starts[a], starts[b], n, d, heap, top,
                    arenas, counts, sequences, unused, pool, scalars,
                )  # fmt: skip
                if is_sound:
                    write_elements(
                        top, starts[b], starts[c], n, heap, arenas, counts, sequences, pool
                    )
                held = hold(np.int64(HELD_SEQUENCES), zero, top, n, held, held_top)
                held_top += 4
            elif name == op.ARRAY_STACK:
                is_sound, start, copied, heads, data, counts, sequences, unused, chunks = stack(
                    b, starts[a], n, heap, top,
                    heads, data, arenas, counts, sequences, unused, pool, chunks, scalars,
                )  # fmt: skip
                if copied:
                    held = hold(np.int64(HELD_RUN), b, start, copied, held, held_top)
                    held_top += 4
                held = hold(np.int64(HELD_SEQUENCES), zero, top, n, held, held_top)
                held_top += 4
            elif name == op.ARRAY_UNSTACK:
                sequences, unused, pool = unstack(
                    b, starts[a], n, heap, top,
                    arenas, counts, sequences, unused, pool, scalars,
                )  # fmt: skip
                held = hold(np.int64(HELD_SEQUENCES), zero, top, n, held, held_top)
                held_top += 4
            else:
                heap, heads, data, counts, chunks, held = upload(
                    n, a, b, dst, top,
                    starts, sizes, heap, heads, data, arenas, counts, sequences, chunks,
                    held, held_top, scalars,
                )  # fmt: skip
                held_top += 4
            starts[dst], sizes[dst] = top, n
            top += n
        if not is_sound:
            status = op.FAULT
            break
        if is_asked:
            scalars[op.MOVES_TOP], scalars[op.HELD_TOP] = moves_top, held_top
            scalars[op.ARRIVED_TOP], scalars[op.HEAP_TOP] = arrived_top, top
            status = op.ASKED
            break
        how = np.int64(op.AFRESH)
        # ---- what nobody keeps is forgotten, and rows end
        for h in range(0, held_top, 4):
            arena, at, n = held[h + 1], held[h + 2], held[h + 3]
            region = arenas[arena, op.REGION]
            if held[h] == HELD_RUN:
                counts[region + at : region + at + n] -= 1
            else:
                place = np.int64(op.IN_SEQUENCES) if held[h] == HELD_SEQUENCES else arena
                refer(place, heap, at, n, -one, arenas, counts, sequences, unused, pool, scalars)
        settle(
            heap, op.ROWS_REGISTER, count, contexts, frames, free_rows, live,
            arenas, counts, sequences, unused, pool, scalars,
        )  # fmt: skip
        settle(
            arrived, zero, arrived_top, contexts, frames, free_rows, live,
            arenas, counts, sequences, unused, pool, scalars,
        )  # fmt: skip
        if nodes[node, op.NODE_QUEUE] == op.DATA_QUEUE:
            scalars[op.PERIOD] = scalars[op.RECORDS]
            if scalars[op.RECORDS] - first_record >= limits[op.WINDOW]:
                status = op.PAUSED
                break
    return (
        status, frames, queue, counts, heap, sequences, unused, pool, heads, data, chunks,
        moves, held, arrived,
    )  # fmt: skip
