"""What is kept of a process group goes when torch destroys the group: its threads, too."""

import gc
import threading
import weakref

import pytest
import torch.distributed as dist

from penstock.distributed.abort import INTERVAL
from penstock.distributed.processes import current_transport


@pytest.fixture
def group():
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def watches() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "penstock-watch"]


def test_a_transport_goes_with_its_group(group):
    transport = weakref.ref(current_transport())
    gone = weakref.ref(dist.group.WORLD)
    assert current_transport() is transport()
    dist.destroy_process_group()
    gc.collect()
    assert gone() is None
    assert transport() is None


def test_the_thread_beside_waits_ends_with_its_group(group):
    before = watches()
    watch = current_transport()._watch
    watch.begin()
    watch.end()
    (thread,) = set(watches()) - set(before)
    del watch
    dist.destroy_process_group()
    gc.collect()
    thread.join(50 * INTERVAL)
    assert not thread.is_alive()
