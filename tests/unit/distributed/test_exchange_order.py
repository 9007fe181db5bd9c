"""The order of exchanges cannot deadlock: every interleaving of a model of it is tried."""

from itertools import product

import pytest
import torch

import penstock as ps
from penstock.distributed.endpoint import IN_FLIGHT
from penstock.plan.schedule import Copy, Read
from tests.unit.distributed.exchange_model import (
    Drain,
    Receive,
    Send,
    broadcast_tree,
    in_order,
    search,
    with_blocking_sends,
)

PAIRS = [(a, b) for a in range(3) for b in range(3) if a != b]


def exchanges_of(function, columns, size):
    """The list of (source, target) of a schedule on `size` devices, one for each rank."""
    found = []
    for item in function.schedule(*columns).instructions:
        if isinstance(item, Copy) and item.source.arena % size != item.target.arena % size:
            found.append((item.source.arena % size, item.target.arena % size))
        if isinstance(item, Read):
            found += broadcast_tree(item.sources[0].arena % size, size)
    return found


def halving_on(size):
    """A loop on several ranks whose predicate is computed: one broadcast for each iteration."""

    @ps.function
    def halving(x, w):
        def body(y):
            for rank in reversed(range(size)):
                with ps.device(f"rank:{rank}"):
                    y = torch.tanh(y @ w)
            return (y,)

        return ps.while_loop(lambda y: y.norm() > 0.4, body, (x,))[0] @ w

    return halving


COLUMNS = (torch.ones(2, 2) * torch.tensor([[1.0], [0.6]]), ps.shared(torch.eye(2) * 0.7))


@pytest.mark.parametrize("size", [2, 3])
def test_a_loop_in_the_order_of_its_schedule_never_deadlocks(size):
    order = exchanges_of(halving_on(size), COLUMNS, size)
    assert len(order) > 6
    for ranks in (in_order(order, size), with_blocking_sends(in_order(order, size))):
        for room in (1, 2, IN_FLIGHT):
            report = search(ranks, room)
            assert not report.deadlocks
            assert not report.mixed


@pytest.mark.parametrize(("size", "length"), [(2, 7), (3, 4)])
def test_no_common_order_deadlocks_whatever_it_is(size, length):
    pairs = [pair for pair in PAIRS if max(pair) < size]
    states = 0
    for order in product(pairs, repeat=length):
        for ranks in (in_order(order, size), with_blocking_sends(in_order(order, size))):
            report = search(ranks, room=1)
            assert not report.deadlocks, order
            assert not report.mixed, order
            states += report.states
    assert states > 1000


def test_the_reversed_order_with_ends_exchanged_never_deadlocks():
    forward = exchanges_of(halving_on(2), COLUMNS, 2)
    order = [(target, source) for source, target in reversed(forward)]
    assert not search(in_order(order, 2), room=IN_FLIGHT).deadlocks


def test_blocking_sends_in_opposite_order_are_found_to_deadlock():
    crossed = [[Send(1, 0), Drain(), Receive(1, 1)], [Send(0, 1), Drain(), Receive(0, 0)]]
    assert search(crossed, room=1).deadlocks


def test_ranks_with_different_orders_are_found_to_deadlock():
    crossed = [[Receive(1, 1), Send(1, 0)], [Receive(0, 0), Send(0, 1)]]
    assert search(crossed, room=IN_FLIGHT).deadlocks


def test_three_ranks_in_a_circle_are_found_to_deadlock():
    circle = [[Receive((k - 1) % 3, k), Send((k + 1) % 3, (k + 1) % 3)] for k in range(3)]
    assert search(circle, room=IN_FLIGHT).deadlocks


def test_messages_that_change_places_are_found():
    crossed = [[Send(1, 0), Send(1, 1)], [Receive(0, 1), Receive(0, 0)]]
    assert search(crossed, room=2).mixed


@pytest.mark.parametrize("size", range(1, 9))
def test_a_broadcast_reaches_every_rank_once_from_one_that_has_it(size):
    for source in range(size):
        has = {source}
        for sender, receiver in broadcast_tree(source, size):
            assert sender in has
            assert receiver not in has
            has.add(receiver)
        assert has == set(range(size))
