"""Queues in the kernel: which rows wait for which node, and which node is next.

Batches of rows are linked lists in one array, and move together when it is full. Nodes are chosen
as in `penstock.plan.ready_nodes`.
"""

from __future__ import annotations

import numpy as np

from penstock.plan.native import opcodes as op
from penstock.plan.native.compiler import compiled, compiled_in_place


@compiled
def room_in_queues(count, queue, queue_head, queue_tail, scalars):
    """Room for a batch of rows; batches that are still waiting move together."""
    if scalars[op.QUEUE_TOP] + count + 2 <= len(queue):
        return queue
    waiting = 0
    for node in range(len(queue_head)):
        batch = queue_head[node]
        while batch >= 0:
            waiting += queue[batch + 1] + 2
            batch = queue[batch]
    bigger = np.empty(max(len(queue), 2 * (waiting + count + 2)), np.int64)
    top = 0
    for node in range(len(queue_head)):
        batch, before = queue_head[node], -1
        while batch >= 0:
            size = queue[batch + 1] + 2
            bigger[top : top + size] = queue[batch : batch + size]
            if before < 0:
                queue_head[node] = top
            else:
                bigger[before] = top
            queue_tail[node], before = top, top
            top += size
            batch = queue[batch]
    scalars[op.QUEUE_TOP] = top
    return bigger


@compiled
def append_batch(node, buffer, start, count, queue, queue_head, queue_tail, queue_width, scalars):
    """Put rows at the end of a node's queue; there is room."""
    batch = scalars[op.QUEUE_TOP]
    queue[batch], queue[batch + 1] = -1, count
    for k in range(count):
        queue[batch + 2 + k] = buffer[start + k]
    scalars[op.QUEUE_TOP] = batch + 2 + count
    if queue_head[node] < 0:
        queue_head[node] = batch
    else:
        queue[queue_tail[node]] = batch
    queue_tail[node] = batch
    queue_width[node] += count


@compiled
def mark_ready(node, nodes, control, expanding, in_data, scalars):
    """A node whose queue was empty has got rows."""
    kind = nodes[node, op.NODE_QUEUE]
    if kind == op.DATA_QUEUE:
        in_data[node] = 1
    elif kind == op.EXPANDING_QUEUE:
        expanding[scalars[op.EXPANDING_COUNT]] = node
        scalars[op.EXPANDING_COUNT] += 1
    else:
        place = (scalars[op.CONTROL_HEAD] + scalars[op.CONTROL_COUNT]) % len(control)
        control[place] = node
        scalars[op.CONTROL_COUNT] += 1


@compiled_in_place
def remove_expanding(position, expanding, scalars):
    """Take a node out of those that may create rows."""
    count = scalars[op.EXPANDING_COUNT]
    for place in range(position, count - 1):
        expanding[place] = expanding[place + 1]
    scalars[op.EXPANDING_COUNT] = count - 1


@compiled_in_place
def take_all(node, buffer, start, queue, queue_head, queue_width):
    """All rows that wait for a node, in order."""
    batch = queue_head[node]
    while batch >= 0:
        count = queue[batch + 1]
        for k in range(count):
            buffer[start + k] = queue[batch + 2 + k]
        start += count
        batch = queue[batch]
    queue_head[node] = -1
    queue_width[node] = 0


@compiled_in_place
def admissible(nodes, contexts, live, limits, expanding, in_data, scalars):
    """The position of the first node that may create rows without going over a bound, or -1; loops
    are entered last, and once no block of lower rank is ready.
    """
    if scalars[op.LIVE_ROWS] >= limits[op.LIVE_LIMIT]:
        return -1
    first = -1
    for position in range(scalars[op.EXPANDING_COUNT]):
        node = expanding[position]
        context = nodes[node, op.NODE_CONTEXT]
        if not contexts[context, op.IS_LOOP] or live[context] < limits[op.LOOP_LIMIT]:
            if not nodes[node, op.NODE_ENTERS]:
                return position
            first = position if first < 0 else first
    if first < 0:
        return -1
    lowest = -1
    for node in range(len(in_data)):
        if in_data[node] and (lowest < 0 or nodes[node, op.NODE_RANK] < lowest):
            lowest = nodes[node, op.NODE_RANK]
    for position in range(first, scalars[op.EXPANDING_COUNT]):
        node = expanding[position]
        context = nodes[node, op.NODE_CONTEXT]
        is_open = not contexts[context, op.IS_LOOP] or live[context] < limits[op.LOOP_LIMIT]
        if is_open and (lowest < 0 or nodes[node, op.NODE_RANK] <= lowest):
            return position
    return -1


@compiled_in_place
def most_urgent(nodes, in_data, queue_width):
    """The data node that comes next: lowest rank, then the widest, then the first; or -1."""
    best = -1
    for node in range(len(in_data)):
        if not in_data[node]:
            continue
        if best < 0:
            best = node
            continue
        rank, other = nodes[node, op.NODE_RANK], nodes[best, op.NODE_RANK]
        width, widest = queue_width[node], queue_width[best]
        is_first = nodes[node, op.NODE_NUMBER] < nodes[best, op.NODE_NUMBER]
        if rank < other or (rank == other and (width > widest or (width == widest and is_first))):
            best = node
    return best


@compiled
def deepest(frames, queue, queue_tail, expanding, scalars):
    """The position of the node with the deepest newest row, the last of several."""
    best, depth = -1, -1
    for position in range(scalars[op.EXPANDING_COUNT] - 1, -1, -1):
        batch = queue_tail[expanding[position]]
        row = queue[batch + 1 + queue[batch + 1]]
        if frames[row + op.DEPTH] > depth:
            best, depth = position, frames[row + op.DEPTH]
    return best


@compiled
def take_some(node, most, is_loop, buffer, start, queue, queue_head, queue_tail, queue_width):
    """A few rows: of the oldest iterations, or of the newest calls. How many they are."""
    batch, before = queue_head[node], -1
    if not is_loop:
        while queue[batch] >= 0:
            before, batch = batch, queue[batch]
    count = queue[batch + 1]
    taken = min(count, most)
    first = batch + 2 if is_loop else batch + 2 + count - taken
    buffer[start : start + taken] = queue[first : first + taken]
    queue_width[node] -= taken
    if taken < count:
        if is_loop:
            queue[batch + 2 : batch + 2 + count - taken] = queue[
                first + taken : first + count
            ].copy()
        queue[batch + 1] = count - taken
    elif before < 0:
        queue_head[node] = queue[batch]
    else:
        queue[before] = -1
        queue_tail[node] = before
    return taken
