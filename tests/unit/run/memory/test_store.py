"""The store: what leaves, what comes, and when; with a backing that does nothing by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from penstock.errors import InternalError, SpillError
from penstock.run.memory import store as store_module
from penstock.run.memory.parcels import Extensions, checksum_of, pack, storage_sizes
from penstock.run.memory.store import Store


class Fake:
    """Keeps copies, and a log of what was asked for."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.names: dict[int, str] = {}

    def send(self, parts):
        name = str(int(parts[0][0]))
        self.log.append(f"send {name}")
        return FakeAway(self, name, [part.clone() for part in parts])


class FakeAway:
    def __init__(self, backing, name, copies):
        self.backing, self.name, self.copies = backing, name, copies

    def settle(self):
        self.backing.log.append(f"settle {self.name}")

    def bring(self):
        self.backing.log.append(f"bring {self.name}")
        return FakeArriving([part.clone() for part in self.copies])

    def free(self):
        self.backing.log.append(f"free {self.name}")


class FakeArriving:
    def __init__(self, parts):
        self.parts = parts

    def settle(self):
        return self.parts


@pytest.fixture
def backing(monkeypatch) -> Iterator[Fake]:
    made = Fake()
    monkeypatch.setattr(store_module, "new_backing", lambda device, **_: made)
    return made


def put(store: Store, number: int):
    """A parcel of 100 bytes."""
    return store.put([torch.full((100,), number, dtype=torch.uint8)], 100)


def test_all_stays_where_there_is_no_budget(backing):
    store = Store(None)
    parcels = [put(store, k) for k in range(10)]
    assert all(parcel.is_here for parcel in parcels)
    assert backing.log == []
    assert store.bytes == store.peak == 1000


def test_the_oldest_leave_first_and_are_sent_before_they_must(backing):
    store = Store(400)
    parcels = [put(store, k) for k in range(4)]
    assert backing.log == ["send 0"]  # three quarters are full
    assert all(parcel.is_here for parcel in parcels)
    parcels.append(put(store, 4))
    assert backing.log == ["send 0", "send 1", "settle 0"]
    assert [parcel.is_here for parcel in parcels] == [False, True, True, True, True]
    assert store.bytes == 400
    assert store.peak == 500


def test_it_is_told_once_before_launches_wait(backing):
    store = Store(250)
    store.before_waiting = lambda taken: backing.log.append(f"wait after {taken}")
    for number in range(4):
        put(store, number)
    assert backing.log == ["send 0", "send 1", "wait after 300", "settle 0", "send 2", "settle 1"]


def test_the_next_ones_come_before_they_are_wanted_in_reverse_order(backing):
    store = Store(400)
    parcels = [put(store, k) for k in range(8)]
    backing.log.clear()
    store.expect(parcels[::-1])
    for number, parcel in reversed(list(enumerate(parcels))):
        assert store.fetch(parcel)[0].tolist() == [number] * 100
        store.drop(parcel)
    brought = [each for each in backing.log if each.startswith("bring")]
    assert brought == ["bring 3", "bring 2", "bring 1", "bring 0"]
    # Parcel 3 comes as soon as there is room, while the newer ones are still being used.
    assert backing.log.index("bring 3") < backing.log.index("free 4")
    assert store.bytes == 0
    assert store.peak <= 500


def test_a_parcel_larger_than_the_budget_comes_alone(backing):
    store = Store(50)
    first, second = put(store, 0), put(store, 1)
    assert store.bytes == 0
    store.expect([second, first])
    store.fetch(second)
    assert store.bytes == 100
    assert not first.is_here
    store.drop(second)
    store.fetch(first)
    assert store.bytes == 100


def test_what_is_left_leaves_again_without_a_second_copy(backing):
    store = Store(0)
    parcel = put(store, 0)
    for _ in range(2):
        store.expect([parcel])
        store.fetch(parcel)
        store.leave(parcel)
        store.rest()
        assert store.bytes == 0
        assert not parcel.is_here
    assert backing.log.count("send 0") == 1
    assert backing.log.count("bring 0") == 2


def test_what_was_brought_and_is_not_wanted_leaves_at_rest(backing):
    store = Store(300)
    parcels = [put(store, k) for k in range(6)]
    store.expect(parcels[::-1])
    store.fetch(parcels[5])
    store.drop(parcels[5])
    store.fetch(parcels[4])
    assert any(parcel.arriving is not None for parcel in parcels)
    store.rest()
    assert all(parcel.arriving is None for parcel in parcels)
    assert store.bytes == sum(parcel.size for parcel in parcels if parcel.is_here)


def test_with_the_last_parcel_goes_the_backing(backing):
    store = Store(0)
    parcels = [put(store, k) for k in range(3)]
    for parcel in parcels:
        store.drop(parcel)
    assert not store._backings
    assert backing.log.count("free 1") == 1


def test_half_of_all_leaves_when_an_allocation_fails(backing):
    store = Store(None)
    parcels = [put(store, k) for k in range(6)]
    assert store.shrink() == 300
    assert [parcel.is_here for parcel in parcels] == [False] * 3 + [True] * 3
    assert Store(None).shrink() == 0


def test_a_failed_allocation_never_makes_the_budget_larger(backing):
    """A parcel in use may take more than all of it."""
    store = Store(10)
    first = put(store, 0)
    store.fetch(first)
    assert store.shrink() == 0
    assert store.budget == 10


def test_a_parcel_that_could_not_leave_is_sent_anew(backing, monkeypatch):
    store = Store(100)
    first = put(store, 0)

    def fail(away):
        raise SpillError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(FakeAway, "settle", fail)
        with pytest.raises(SpillError):
            put(store, 1)
    assert first.is_here
    assert store.bytes == 200
    store.make_room()
    assert not first.is_here
    assert store.bytes == 100
    assert backing.log.count("send 0") == 2
    assert int(store.fetch(first)[0][0]) == 0


def test_changed_bytes_are_found_where_somebody_looks(backing, monkeypatch):
    monkeypatch.setattr(store_module, "CHECKS", True)
    store = Store(0)
    parcel = put(store, 0)
    parcel.away.copies[0][7] = 1
    with pytest.raises(InternalError, match="came back changed"):
        store.fetch(parcel)


def test_views_come_back_as_they_were():
    base = torch.arange(24.0).reshape(4, 6)
    tensors = [base[:, :3], base[:, 3:], base.t(), torch.tensor(True), torch.ones(2, 0)]
    tensors += [torch.ones(3, dtype=torch.bfloat16), torch.ones(2, dtype=torch.complex64)]
    parts, views = pack(tensors)
    copies = [part.clone() for part in parts]
    for tensor, view in zip(tensors, views, strict=True):
        found = view.of(copies)
        assert found.stride() == tensor.stride()
        assert found.dtype == tensor.dtype
        assert torch.equal(found, tensor)
    assert views[0].storage == views[1].storage == views[2].storage
    assert checksum_of(parts) == checksum_of(copies)


def test_a_small_part_of_a_storage_travels_alone():
    base = torch.arange(60.0).reshape(10, 6)
    whole = [base[:, :3], base[:, 3:]]
    assert all(a is b for a, b in zip(Extensions(whole).compact(whole), whole, strict=True))
    (part,) = Extensions([base[2:4]]).compact([base[2:4]])
    assert torch.equal(part, base[2:4])
    assert part.stride() == base.stride()
    assert part.untyped_storage().nbytes() == part.nbytes
    assert list(storage_sizes(whole).values()) == [base.nbytes]
    assert list(storage_sizes([base[:1]]).values()) == [base[:1].nbytes]


def test_a_parcel_may_leave_while_it_is_asked_what_else_to_do(backing):
    """To drop others makes room, and may let the very parcel leave."""
    store = Store(300)
    first = put(store, 1)

    def instead(parcel):
        if parcel is first and parcel.away is None:
            store.instead = None
            store.budget = 0
            store.make_room()
        return False

    store.instead = instead
    put(store, 2)
    put(store, 3)
    assert backing.log.count("send 1") == 1
    assert not first.is_here
