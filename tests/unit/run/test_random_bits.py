"""Counter-based random numbers: the same everywhere, and random enough."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.plan import random_keys
from penstock.run import random_bits
from penstock.run.batched import BlockInput, build_batched

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def key(number: int) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.int64)


def test_host_and_tensor_keys_are_the_same_bits():
    keys = np.arange(-5, 2000, 7)
    for salt in (0, 1, 12345, -3):
        host = random_keys.as_signed(random_keys.mix(keys, salt))
        tensor = random_bits.mix(torch.from_numpy(keys), salt)
        assert torch.equal(torch.from_numpy(host), tensor)


def test_one_key_and_one_salt_need_no_array():
    one = random_keys.mix(7, 9)
    assert one.shape == ()
    assert int(one) == int(random_keys.mix([7], [9])[0])


def test_known_values_of_splitmix64():
    state = np.uint64(random_keys.GOLDEN)
    assert int(random_keys.scramble(state)) == 0xE220A8397B1DCDAF


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_at_once_draw_what_rows_apart_draw(dtype):
    def function(k):
        return (
            random_bits.uniform(k, (3, 5), dtype),
            random_bits.bernoulli(k, (7,), 0.3),
            random_bits.randint(k, 2, 9, (4,)),
            random_bits.dropout(k, torch.ones(6, dtype=dtype), 0.5),
            random_bits.bits(k, ()),
        )

    block = build_batched(function, [BlockInput("row", "int64", ())], name="draw")
    assert block.unbatched == ()
    keys = torch.arange(9) * 1001 - 7
    for row, outputs in enumerate(zip(*block(9, keys), strict=True)):
        for batched, single in zip(outputs, function(keys[row]), strict=True):
            assert torch.equal(batched, single)


def test_normal_rows_agree_up_to_rounding():
    block = build_batched(
        lambda k: (random_bits.normal(k, (64,)),), [BlockInput("row", "int64", ())], name="normal"
    )
    keys = torch.arange(5)
    for row in range(5):
        torch.testing.assert_close(block(5, keys)[0][row], random_bits.normal(keys[row], (64,)))


def test_the_length_of_a_draw_may_be_dynamic():
    inputs = [BlockInput("row", "int64", ()), BlockInput("row", "float32", ("n", 3))]
    block = build_batched(
        lambda k, x: (random_bits.dropout(k, x, 0.5),), inputs, name="dynamic dropout"
    )
    assert block.is_general
    keys, x = torch.arange(4), torch.ones(4, 11, 3)
    assert torch.equal(block(4, keys, x)[0][2], random_bits.dropout(keys[2], x[2], 0.5))


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_numbers_lie_in_the_half_open_interval_and_have_its_moments(dtype):
    numbers = random_bits.uniform(key(3), (40_000,), dtype)
    assert numbers.dtype == dtype
    assert float(numbers.min()) >= 0.0
    assert float(numbers.max()) < 1.0
    precise = numbers.double()
    assert abs(float(precise.mean()) - 0.5) < 0.01
    assert abs(float(precise.var()) - 1 / 12) < 0.003


def test_normal_numbers_have_the_moments_of_the_normal_distribution():
    numbers = random_bits.normal(key(11), (200_000,), torch.float64)
    assert numbers.isfinite().all()
    moments = [float((numbers**k).mean()) for k in (1, 2, 3, 4)]
    assert np.allclose(moments, [0, 1, 0, 3], atol=0.06)


def test_every_bit_is_set_half_of_the_time_and_bits_are_independent():
    count = 1 << 15
    words = random_bits.bits(key(5), (count,)).numpy().view(np.uint64)
    table = ((words[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)).astype(np.float64)
    chi_square = ((table.sum(0) - count / 2) ** 2 / (count / 4)).sum()
    assert 25 < chi_square < 115  # 64 degrees of freedom, far out in both tails
    correlation = np.corrcoef(table.T) - np.eye(64)
    assert np.abs(correlation).max() < 5 / np.sqrt(count)


def test_bytes_are_spread_evenly():
    words = random_bits.bits(key(6), (1 << 15,)).numpy().view(np.uint8)
    counts = np.bincount(words, minlength=256)
    chi_square = ((counts - words.size / 256) ** 2 / (words.size / 256)).sum()
    assert 150 < chi_square < 370  # 255 degrees of freedom


@pytest.mark.parametrize("step", [1, 2, 1 << 32, random_keys.GOLDEN - 2**64])
def test_neighbouring_keys_counters_and_streams_are_not_correlated(step):
    keys = key(17) + torch.arange(64) * step
    table = torch.stack([random_bits.uniform(k, (512,), torch.float64) for k in keys])
    assert float((torch.corrcoef(table) - torch.eye(64)).abs().max()) < 0.25
    line = table.flatten()
    assert abs(float(torch.corrcoef(torch.stack([line[1:], line[:-1]]))[0, 1])) < 0.03
    assert line.unique().numel() == line.numel()


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 1.0])
def test_bernoulli_has_its_probability(probability):
    drawn = random_bits.bernoulli(key(2), (50_000,), probability).double().mean()
    assert abs(float(drawn) - probability) < 0.01


def test_dropout_keeps_the_mean_and_leaves_torch_generators_alone():
    state = torch.get_rng_state()
    source = torch.full((50_000,), 2.0)
    assert abs(float(random_bits.dropout(key(8), source, 0.25).mean()) - 2.0) < 0.03
    assert random_bits.dropout(key(8), source, 0.0) is source
    assert not random_bits.dropout(key(8), source, 1.0).any()
    assert torch.equal(state, torch.get_rng_state())


def test_randint_covers_its_range():
    numbers = random_bits.randint(key(4), -2, 3, (10_000,))
    assert numbers.unique().tolist() == [-2, -1, 0, 1, 2]
