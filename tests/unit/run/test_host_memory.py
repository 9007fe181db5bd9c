"""Large pieces of memory come back when nobody reads them, and only then."""

import gc
import threading

import pytest
import torch

from penstock.run import host_memory
from penstock.run.host_memory import ALIGNMENT, LEAST_BYTES, HostMemory, empty_on_host
from penstock.run.memory.lasting import give_back_lasting

ROWS = 3 * LEAST_BYTES // 64 + 17


def place_of(values: torch.Tensor) -> int:
    return values.untyped_storage().data_ptr()


@pytest.mark.parametrize("shape", [(), (0, 3), (5, 7), (LEAST_BYTES // 4,), (ROWS, 4, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.bool])
def test_a_tensor_is_as_torch_makes_one(shape, dtype):
    made = HostMemory().empty(shape, dtype)
    assert made.shape == shape
    assert made.dtype is dtype
    assert made.device.type == "cpu"
    assert made.is_contiguous()
    assert made.data_ptr() % ALIGNMENT == 0
    assert made.untyped_storage().nbytes() == made.numel() * made.element_size()
    assert not made.requires_grad


def test_what_nobody_reads_is_used_again_for_a_little_more_or_less():
    memory = HostMemory()
    first = memory.empty((ROWS, 16), torch.float32)
    place = place_of(first)
    del first
    second = memory.empty((2 * ROWS + 100, 4), torch.float64)
    assert place_of(second) == place
    assert bool((second.fill_(7) == 7).all())


def test_what_is_read_by_a_view_is_not_used_again():
    memory = HostMemory()
    whole = memory.empty((ROWS, 16), torch.float32)
    view = whole[64:128].view(-1, 4)
    view.fill_(3.0)
    place = place_of(whole)
    del whole
    gc.collect()
    other = memory.empty((ROWS, 16), torch.float32).zero_()
    assert place_of(other) != place
    assert bool((view == 3.0).all())
    del view
    assert place_of(memory.empty((ROWS, 16), torch.float32)) == place


def test_no_more_is_kept_than_the_bound_says():
    memory = HostMemory(most=4 * LEAST_BYTES)
    held = [memory.empty(((k + 1) * LEAST_BYTES,), torch.uint8) for k in range(6)]
    del held
    assert 0 < memory.kept_bytes() <= 4 * LEAST_BYTES


def test_what_is_larger_than_the_bound_is_not_kept():
    memory = HostMemory(most=LEAST_BYTES)
    memory.empty((ROWS, 16), torch.float32)
    assert memory.kept_bytes() == 0


def test_what_waits_is_given_back_when_an_allocation_fails(monkeypatch):
    memory = HostMemory()
    memory.empty((ROWS, 16), torch.float32)
    assert memory.kept_bytes() > 0
    make, kept = host_memory._aligned, []

    def fail_once(size: int) -> host_memory.Piece:
        kept.append(memory.kept_bytes())
        if len(kept) == 1:
            raise MemoryError
        return make(size)

    monkeypatch.setattr(host_memory, "_aligned", fail_once)
    assert memory.empty((4 * ROWS, 16), torch.float32).shape == (4 * ROWS, 16)
    assert kept[0] > 0 == kept[1]


def test_an_allocation_that_fails_for_good_is_a_memory_error(monkeypatch):
    def fail(size: int) -> host_memory.Piece:
        raise MemoryError(size)

    monkeypatch.setattr(host_memory, "_aligned", fail)
    with pytest.raises(MemoryError):
        HostMemory().empty((ROWS, 16), torch.float32)


def test_whoever_lacks_memory_gets_what_waits():
    empty_on_host((ROWS, 16), torch.float32)
    assert host_memory._memory.kept_bytes() > 0
    assert give_back_lasting()
    assert host_memory._memory.kept_bytes() == 0


def test_threads_never_have_the_same_piece():
    memory, wrong = HostMemory(), []

    def work(number: int) -> None:
        for _ in range(200):
            values = memory.empty((ROWS, 16), torch.float32)
            values[:64] = number
            if not bool((values[:64] == number).all()):
                wrong.append(number)
            del values

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
