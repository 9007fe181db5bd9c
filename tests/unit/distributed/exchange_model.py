"""A model of exchanges between ranks, searched through in every interleaving.

A rank is a list of operations. A message waits in the queue of its pair of ranks until it is taken;
`room` messages may wait there. A state is how far each rank is and what waits in each queue; the
search visits every state that any interleaving can reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Send(NamedTuple):
    """Put a message into the queue to a rank."""

    peer: int
    message: int


class Receive(NamedTuple):
    """Take a message out of the queue from a rank."""

    peer: int
    message: int


class Drain(NamedTuple):
    """Go on when all that was sent has been taken."""


Operation = Send | Receive | Drain
#: How far each rank is, and what waits between each pair of ranks.
State = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]


class Report(NamedTuple):
    """What a search has found."""

    states: int
    #: States from which no rank can go on though not all are done.
    deadlocks: list[State]
    #: States in which a rank took a message that it did not expect.
    mixed: list[State]


def search(ranks: Sequence[Sequence[Operation]], room: int) -> Report:
    """Visit every state."""
    size = len(ranks)
    start: State = ((0,) * size, ((),) * (size * size))
    seen, waiting = {start}, [start]
    report = Report(0, [], [])
    while waiting:
        state = waiting.pop()
        found = list(_next_states(ranks, state, room, report))
        is_done = all(at == len(operations) for at, operations in zip(state[0], ranks, strict=True))
        if not found and not is_done:
            report.deadlocks.append(state)
        for other in found:
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return report._replace(states=len(seen))


def _next_states(
    ranks: Sequence[Sequence[Operation]], state: State, room: int, report: Report
) -> Iterator[State]:
    places, queues = state
    size = len(ranks)
    for rank, at in enumerate(places):
        if at == len(ranks[rank]):
            continue
        operation = ranks[rank][at]
        after = list(queues)
        if isinstance(operation, Send):
            queue = rank * size + operation.peer
            if len(queues[queue]) == room:
                continue
            after[queue] = (*queues[queue], operation.message)
        elif isinstance(operation, Receive):
            queue = operation.peer * size + rank
            if not queues[queue]:
                continue
            if queues[queue][0] != operation.message:
                report.mixed.append(state)
            after[queue] = queues[queue][1:]
        elif any(queues[rank * size : (rank + 1) * size]):
            continue
        moved = (*places[:rank], at + 1, *places[rank + 1 :])
        yield moved, tuple(after)


def in_order(exchanges: Sequence[tuple[int, int]], size: int) -> list[list[Operation]]:
    """What each rank does where all go through one list of (source, target), and wait at its end
    until all is taken.
    """
    ranks: list[list[Operation]] = [[] for _ in range(size)]
    for message, (source, target) in enumerate(exchanges):
        ranks[source].append(Send(target, message))
        ranks[target].append(Receive(source, message))
    return [[*operations, Drain()] for operations in ranks]


def broadcast_tree(source: int, size: int) -> list[tuple[int, int]]:
    """Who passes a broadcast on to whom, in an order in which every sender has it: a rank passes
    it on to those whose distance from the source has one more bit in front.
    """
    distances = range(1, size)
    return [
        ((source + d - (1 << d.bit_length() - 1)) % size, (source + d) % size) for d in distances
    ]


def with_blocking_sends(ranks: Sequence[Sequence[Operation]]) -> list[list[Operation]]:
    """The same, where every send waits until it is taken."""
    return [
        [step for item in rank for step in ((item, Drain()) if isinstance(item, Send) else (item,))]
        for rank in ranks
    ]
