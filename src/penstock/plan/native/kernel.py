"""The loop of the kernel: picks the node that fires next and carries out its code.

It fires what the plain machine fires, for the same rows in the same order. All state is in arrays,
so that it can stop after a window of launches and go on later. One long function: arrays that grow
are its local variables.
"""

from __future__ import annotations

import numpy as np

from penstock.plan.native import opcodes as op
from penstock.plan.native.arena_kernel import BASE, LENGTH, refer, room
from penstock.plan.native.compiler import compiled, compiled_at_once
from penstock.plan.native.launch_kernel import (
    HELD_RUN,
    HELD_SEQUENCES,
    launch,
    upload,
)
from penstock.plan.native.row_kernel import (
    RUNNING,
    admissible,
    append_batch,
    deepest,
    mark_ready,
    most_urgent,
    remove_expanding,
    room_in_queues,
    settle,
    take_all,
    take_some,
)


@compiled
def calculate(name, count, heap, into, a, a_step, b, b_step, c, c_step):
    """One host operation for many rows; False where some row has no result."""
    if name == op.ADD:
        for k in range(count):
            heap[into + k] = heap[a + k * a_step] + heap[b + k * b_step]
        return True
    if name == op.EQUAL:
        for k in range(count):
            heap[into + k] = np.int64(heap[a + k * a_step] == heap[b + k * b_step])
        return True
    if name == op.LESS:
        for k in range(count):
            heap[into + k] = np.int64(heap[a + k * a_step] < heap[b + k * b_step])
        return True
    for k in range(count):
        x, y = heap[a + k * a_step], heap[b + k * b_step]
        if name == op.SUBTRACT:
            z = x - y
        elif name == op.MULTIPLY:
            z = x * y
        elif name == op.FLOOR_DIVIDE or name == op.REMAINDER:
            if y == 0 or y == -1:
                return False  # the plain machine knows what becomes of it
            z = x // y if name == op.FLOOR_DIVIDE else x % y
        elif name == op.NEGATE:
            z = -x
        elif name == op.ABSOLUTE:
            z = abs(x)
        elif name == op.COPY:
            z = x
        elif name == op.NOT_EQUAL:
            z = np.int64(x != y)
        elif name == op.LESS_EQUAL:
            z = np.int64(x <= y)
        elif name == op.AND:
            z = x & y
        elif name == op.OR:
            z = x | y
        elif name == op.XOR:
            z = x ^ y
        elif name == op.INVERT:
            z = ~x
        elif name == op.IS_TRUE:
            z = np.int64(x != 0)
        elif name == op.IS_FALSE:
            z = np.int64(x == 0)
        elif name == op.MINIMUM:
            z = min(x, y)
        elif name == op.MAXIMUM:
            z = max(x, y)
        else:
            z = y if x != 0 else heap[c + k * c_step]
        heap[into + k] = z
    return True


@compiled
def split(rows, count, index, step, arms, is_cond, heap, top, dst, starts, sizes):
    """The rows of each arm; False where an index chooses none."""
    for arm in range(arms):
        starts[dst + arm] = top
        for k in range(count):
            taken = heap[index + k * step]
            if is_cond:
                taken = np.int64(taken != 0)
            elif taken < 0 or taken >= arms:
                return False, top
            if taken == arm:
                heap[top] = heap[rows + k]
                top += 1
        sizes[dst + arm] = top - starts[dst + arm]
    return True, top


@compiled
def read_elements(kind, count, heap, a, b, b_step, into, base, length, flat):
    """Elements of tables or slots of sequences; negative indices count from the end."""
    for k in range(count):
        number, index = heap[a + k], heap[b + k * b_step]
        if index < 0:
            index += length[number]
        if index < 0 or index >= length[number]:
            return False
        place = base[number] + index
        heap[into + k] = flat[place] if kind == op.READ_TABLE else place
    return True


@compiled
def longest_first(heap, counter, bound, count, into):
    """The order of rows by the difference of two values, the largest first."""
    below = heap[counter : counter + count] - heap[bound : bound + count]
    heap[into : into + count] = np.argsort(below, kind="mergesort")


@compiled
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


@compiled_at_once
def advance(
    code, lists, nodes, contexts, groups, waits, constants, registers, limits,
    instance_values, table_base, table_length, table_values,
    scalars, frames, free_rows, live,
    queue, queue_head, queue_tail, queue_width, control, expanding, in_data,
    arenas, counts, sequences, unused, results, heads, data, chunks, heap,
):  # fmt: skip
    """Plan until nothing is left or a window is full."""
    starts, sizes = np.zeros(registers, np.int64), np.zeros(registers, np.int64)
    steps = np.ones(registers, np.int64)
    for k in range(min(len(constants), op.ROWS_REGISTER)):
        heap[k], starts[k], steps[k] = constants[k], k, 0
    moves, held, arrived = np.empty(64, np.int64), np.empty(64, np.int64), np.empty(64, np.int64)
    # numbers of one type: a function is compiled anew for each literal that it is given
    zero, one = np.int64(0), np.int64(1)
    first_record = scalars[op.RECORDS]
    status = op.DONE
    while True:
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
        is_sound = True
        while is_sound:
            name, dst, rows = code[pc], code[pc + 1], code[pc + 2]
            a, b, c, d = code[pc + 3], code[pc + 4], code[pc + 5], code[pc + 6]
            pc += op.WIDTH
            if name == op.END:
                if move == moves_top:
                    break
                pc = groups[moves[move]]
                starts[op.ROWS_REGISTER], sizes[op.ROWS_REGISTER] = moves[move + 2], moves[move + 1]
                for k in range(moves[move + 3]):
                    starts[op.ROWS_REGISTER + 1 + k] = moves[move + 4 + k]
                    sizes[op.ROWS_REGISTER + 1 + k] = moves[move + 1]
                move += 4 + moves[move + 3]
                continue
            n, at = sizes[rows], starts[rows]
            if name == op.SKIP_EMPTY:
                if n == 0:
                    pc = a
                continue
            heap = room(heap, top + n)
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
            elif name == op.LONGEST_FIRST:
                longest_first(heap, starts[a], starts[b], n, top)
            elif name == op.CREATE:
                is_sound, frames = create(
                    at, n, a, b, c, d, heap, top,
                    contexts, waits, frames, free_rows, live, limits, scalars,
                )  # fmt: skip
            elif name == op.COUNT_DOWN:
                found = zero
                for k in range(n):
                    cell = heap[at + k] + a
                    frames[cell] -= 1
                    if frames[cell] == 0:
                        heap[top + found] = heap[at + k]
                        found += 1
                n = found
                if n:
                    if queue_head[b] < 0:
                        mark_ready(b, nodes, control, expanding, in_data, scalars)
                    queue = room_in_queues(n, queue, queue_head, queue_tail, scalars)
                    append_batch(
                        b, heap, top, n, queue, queue_head, queue_tail, queue_width, scalars
                    )
            elif name == op.SPLIT:
                is_sound, top = split(
                    at, n, starts[a], steps[a], b, c, heap, top, dst, starts, sizes
                )
                continue
            elif name == op.STORE:
                for k in range(n):
                    frames[heap[at + k] + a] = heap[starts[b] + k]
                continue
            elif name == op.STORE_SLOT:
                for k in range(n):
                    frames[heap[at + k] + a] = heap[starts[b] + k]
                refer(c, heap, starts[b], n, one, arenas, counts, sequences, unused, scalars)
                continue
            elif name == op.ENQUEUE:
                if n:
                    if queue_head[a] < 0:
                        mark_ready(a, nodes, control, expanding, in_data, scalars)
                    queue = room_in_queues(n, queue, queue_head, queue_tail, scalars)
                    append_batch(
                        a, heap, at, n, queue, queue_head, queue_tail, queue_width, scalars
                    )
                continue
            elif name == op.WAIT:
                for k in range(n):
                    frames[heap[at + k] + op.UNDONE] += a
                continue
            elif name == op.MOVE:
                moves = room(moves, moves_top + 4 + c)
                moves[moves_top], moves[moves_top + 1], moves[moves_top + 2] = a, n, at
                moves[moves_top + 3] = c
                for k in range(c):
                    moves[moves_top + 4 + k] = starts[lists[b + k]]
                moves_top += 4 + c
                continue
            elif name == op.FINISH:
                for k in range(n):
                    results[a, frames[heap[at + k] + op.INSTANCE]] = heap[starts[b] + k]
                refer(c, heap, starts[b], n, one, arenas, counts, sequences, unused, scalars)
                continue
            elif name == op.LOOSE:
                arrived = room(arrived, arrived_top + n)
                for k in range(n):
                    arrived[arrived_top + k] = heap[at + k]
                arrived_top += n
                continue
            elif name == op.FIRED:
                scalars[op.FIRINGS] += 1
                continue
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
        # ---- what nobody keeps is forgotten, and rows end
        for h in range(0, held_top, 4):
            arena, at, n = held[h + 1], held[h + 2], held[h + 3]
            region = arenas[arena, op.REGION]
            if held[h] == HELD_RUN:
                counts[region + at : region + at + n] -= 1
            else:
                place = np.int64(op.IN_SEQUENCES) if held[h] == HELD_SEQUENCES else arena
                refer(place, heap, at, n, -one, arenas, counts, sequences, unused, scalars)
        settle(
            heap, op.ROWS_REGISTER, count, contexts, frames, free_rows, live,
            arenas, counts, sequences, unused, scalars,
        )  # fmt: skip
        settle(
            arrived, zero, arrived_top, contexts, frames, free_rows, live,
            arenas, counts, sequences, unused, scalars,
        )  # fmt: skip
        if nodes[node, op.NODE_QUEUE] == op.DATA_QUEUE:
            scalars[op.PERIOD] = scalars[op.RECORDS]
            if scalars[op.RECORDS] - first_record >= limits[op.WINDOW]:
                status = op.PAUSED
                break
    return status, frames, queue, counts, heap, sequences, unused, heads, data, chunks
