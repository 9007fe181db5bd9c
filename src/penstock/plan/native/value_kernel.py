"""Values in the kernel: host operations, branches and reads of tables, for batches of rows.

Registers lie on the heap; a step of 0 reads one value for all rows. What has no result for some row
is a fault, which the plain machine then explains.
"""

from __future__ import annotations

import numpy as np

from penstock.plan.native import opcodes as op
from penstock.plan.native.compiler import compiled


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
def store_elements(
    rows, count, numbers, listed, elements, arena,
    heap, lists, starts, steps, frames, arenas, counts, bases, lengths,
):  # fmt: skip
    """Several elements of each row's sequence, kept in the frames and counted; False where there is
    no such element.
    """
    region, given = arenas[arena, op.REGION], arenas[arena, op.GIVEN]
    for j in range(listed, listed + elements):
        register, offset = lists[j], lists[j + elements]
        start, step = starts[register], steps[register]
        for k in range(count):
            number, index = heap[numbers + k], heap[start + k * step]
            length = lengths[number]
            if index < 0:
                index += length
            if index < 0 or index >= length:
                return False
            slot = bases[number] + index
            frames[heap[rows + k] + offset] = slot
            if slot >= given:
                counts[region + slot] += 1
    return True


@compiled
def longest_first(heap, counter, bound, count, into):
    """The order of rows by the difference of two values, the largest first."""
    below = heap[counter : counter + count] - heap[bound : bound + count]
    heap[into : into + count] = np.argsort(below, kind="mergesort")
