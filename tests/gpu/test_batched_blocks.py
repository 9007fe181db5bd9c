"""Batched blocks and random bits on a device: the same results as on the CPU."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

from penstock.errors import PenstockWarning
from penstock.run import random_bits
from penstock.run.batched import build_batched
from tests.unit.run.batched_cases import CASES

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", CASES)
def test_a_block_on_the_device_agrees_with_rows_apart_on_the_cpu(name):
    given, function = CASES[name]

    def on_device(*tensors):
        with torch.device(tensors[0].device):
            return function(*tensors)

    with warnings.catch_warnings():
        warnings.simplefilter("error", PenstockWarning)
        block = build_batched(
            on_device, [replace(g.spec(), device="cuda") for g in given], name=name
        )
    generator = torch.Generator().manual_seed(1)
    for rows in (1, 5):
        arguments = [g.make(rows, generator) for g in given]
        actual = block(rows, *[argument.cuda() for argument in arguments])
        assert all(tensor.is_cuda for tensor in actual)
        for i in range(rows):
            picked = [a[i] if g.kind == "row" else a for g, a in zip(given, arguments, strict=True)]
            for left, right in zip(actual, function(*picked), strict=True):
                torch.testing.assert_close(
                    left[i].cpu(), right, rtol=1e-3, atol=1e-3, equal_nan=True
                )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_uniform_numbers_are_the_same_bits_on_every_device(dtype):
    keys = torch.arange(-3, 100) * 12345
    for key in keys:
        host = random_bits.uniform(key, (33,), dtype)
        assert torch.equal(host, random_bits.uniform(key.cuda(), (33,), dtype).cpu())
