"""Copies to pinned memory are ordered by events alone: on simulated streams, which run in any order
that events allow, every byte comes back.
"""

from __future__ import annotations

import pytest
import torch

from penstock.errors import SpillError
from penstock.run.memory import pinned
from penstock.run.memory import store as store_module
from penstock.run.memory.pinned import PinnedMemory
from penstock.run.memory.store import Store
from tests.unit.run.memory.simulated_streams import simulated_streams

CPU = torch.device("cpu")


@pytest.mark.parametrize("seed", range(20))
def test_bytes_come_back_though_their_memory_is_used_again(seed):
    """Launches make bytes, and write over them as soon as the store has let them go."""
    with simulated_streams(seed) as streams, pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "new_backing", lambda device, **_: PinnedMemory(CPU))
        store = Store(700)
        expected, originals, parcels = [], [], []
        for number in range(12):
            part = torch.zeros(200 + number, dtype=torch.uint8)
            streams.launch(lambda part=part, number=number: part.fill_(number + 1))
            expected.append(number + 1)
            originals.append(part)
            parcels.append(store.put([part], len(part)))
            for left, parcel in zip(originals, parcels, strict=True):
                if not parcel.is_here:
                    streams.launch(lambda left=left: left.zero_())
        seen = []
        store.expect(parcels[::-1])
        for parcel in reversed(parcels):
            (part,) = store.fetch(parcel)
            streams.launch(lambda part=part: seen.append(part.unique().tolist()))
            store.drop(parcel)
            streams.launch(lambda part=part: part.zero_())
        streams.finish()
        assert seen == [[value] for value in reversed(expected)]
        assert all(extents.used == 0 for extents in pinned.slab_of(CPU).extents)


@pytest.mark.parametrize("seed", range(20))
def test_pinned_bytes_are_written_again_only_after_they_are_read(seed):
    with simulated_streams(seed) as streams:
        memory = PinnedMemory(CPU)
        found = []
        for number in range(8):
            part = torch.zeros(600, dtype=torch.uint8)  # one piece has room for one of them
            streams.launch(lambda part=part, number=number: part.fill_(number + 1))
            away = memory.send([part])
            found.append(away.bring())  # at once: it waits for the copy out
            away.free()
        values = [arriving.settle()[0] for arriving in found]
        streams.finish()
        assert [each.unique().tolist() for each in values] == [[k + 1] for k in range(8)]
        assert len(pinned.slab_of(CPU).pieces) == 1


@pytest.mark.parametrize("seed", range(20))
def test_bytes_come_to_memory_that_earlier_launches_have_done_with(seed, monkeypatch):
    with simulated_streams(seed) as streams:
        away = PinnedMemory(CPU).send([torch.ones(10, dtype=torch.uint8)])
        away.settle()
        old = torch.zeros(10, dtype=torch.uint8)
        streams.launch(lambda: old.fill_(99))
        monkeypatch.setattr(pinned, "_new", lambda size, device: old)
        (values,) = away.bring().settle()
        streams.finish()
        assert values.tolist() == [1] * 10


def test_memory_of_a_copy_that_nobody_waits_for_is_kept_until_it_is_done():
    with simulated_streams(0) as streams:
        memory = PinnedMemory(CPU)
        part = torch.ones(10, dtype=torch.uint8)
        away = memory.send([part])
        arriving = away.bring()
        del arriving, away  # waits: otherwise the bytes might be given to others
        assert not any(stream.work for stream in streams.all[1:])
        assert pinned.slab_of(CPU).extents[0].used == 0


def test_too_little_pinned_memory_is_an_error_that_says_what_to_do(monkeypatch):
    def fail(count):
        raise RuntimeError("CUDA error: out of memory\nmore")

    with simulated_streams(0):
        monkeypatch.setattr(pinned, "_pinned", fail)
        with pytest.raises(SpillError) as found:
            PinnedMemory(CPU).send([torch.ones(10, dtype=torch.uint8)])
    text = str(found.value)
    assert "not enough pinned host memory" in text
    assert "CUDA error: out of memory" in text
    assert "Free memory of the host, or let more of it be pinned (ulimit -l)." in text
