"""Which errors say that memory has run out."""

from __future__ import annotations

import pytest
import torch

from penstock.run.memory.exhaustion import is_out_of_memory


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_an_allocation_that_fails_is_known_by_its_error(error):
    assert is_out_of_memory(error)


def test_other_errors_are_none_of_it():
    assert not is_out_of_memory(RuntimeError("expected scalar type Float"))
    assert not is_out_of_memory(ValueError("std::bad_alloc"))
