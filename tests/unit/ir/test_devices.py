"""Names of devices, and what is wrong with others."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.errors import ArgumentError
from penstock.ir.devices import Device, read_device

NAMES = {
    "cpu": Device(None, "cpu:0"),
    "cpu:1": Device(None, "cpu:1"),
    "cuda": Device(None, "cuda:0"),
    "cuda:3": Device(None, "cuda:3"),
    "rank:2": Device(2, None),
    "rank:1/cuda:0": Device(1, "cuda:0"),
    "rank:12/cpu:3": Device(12, "cpu:3"),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_says_process_and_queue(name):
    assert read_device(name) == NAMES[name]


@pytest.mark.parametrize(
    "name", ["", "gpu:0", "cpu:", "cpu:x", "rank:", "rank:1/", "/cpu:0", "cpu:0/rank:1", 3, None]
)
def test_another_name_is_refused_with_the_names_there_are(name):
    with pytest.raises(ArgumentError) as caught:
        ps.device(name)
    assert str(caught.value) == (
        "device: there is no device of that name.\n"
        f"  given  {name!r}\n"
        "  names  'cpu:1', 'cuda:0', 'rank:1', 'rank:1/cuda:0'\n"
        "Name a queue of this process, a process by its rank, or a queue of a process."
    )


def test_what_a_name_leaves_open_is_as_the_outer_device_says():
    assert Device(None, "cpu:1").inside(Device(2, "cpu:0")) == Device(2, "cpu:1")
    assert Device(1, None).inside(Device(2, "cpu:3")) == Device(1, "cpu:3")


def test_a_device_prints_as_it_is_written():
    for device in (Device(0, "cpu:1"), Device(None, "cpu:1")):
        assert str(device) == "cpu:1"
    assert str(Device(1, "cuda:0")) == "rank:1/cuda:0"
    assert str(Device(1, None)) == "rank:1"


def test_devices_are_ordered_by_process_then_kind_then_number():
    names = ["cpu:2", "cpu:10", "cuda:0", "rank:1/cpu:0"]
    devices = [read_device(name) for name in names]
    shuffled = [devices[number] for number in (2, 0, 3, 1)]
    assert sorted(shuffled, key=lambda device: device.order) == devices
