"""Random numbers as a pure function of a key and an element number, in plain integer arithmetic on
tensors.

The key is a 0-d int64 tensor; element e of a draw is the splitmix64 finalizer of (scrambled key +
(e + 1) * golden). So a draw is the same for one instance and for many at once, on every device, in
whatever order: bits, `uniform`, `bernoulli`, `randint` and `dropout` masks exactly; `normal` up to
the rounding of log and cos. torch's generators are not touched. int64 products wrap; a logical
shift is an arithmetic one with the sign bits masked away. Not for cryptography.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from penstock.plan.random_keys import FIRST_FACTOR, GOLDEN, SECOND_FACTOR, SHIFTS

#: Bits of a uniform number: what the significand holds exactly.
_PRECISION = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def _signed(number: int) -> int:
    """A number modulo 2**64, as int64 holds it."""
    return (number + 2**63) % 2**64 - 2**63


def _shift_right(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)


def scramble(numbers: torch.Tensor) -> torch.Tensor:
    """The splitmix64 finalizer, element by element."""
    numbers = (numbers ^ _shift_right(numbers, SHIFTS[0])) * _signed(FIRST_FACTOR)
    numbers = (numbers ^ _shift_right(numbers, SHIFTS[1])) * _signed(SECOND_FACTOR)
    return numbers ^ _shift_right(numbers, SHIFTS[2])


def mix(key: torch.Tensor, salt: torch.Tensor | int) -> torch.Tensor:
    """The key of place `salt` below `key`; equal to `penstock.plan.random_keys.mix` bit for bit."""
    if isinstance(salt, torch.Tensor):
        return scramble(scramble(key) + (salt + 1) * _signed(GOLDEN))
    return scramble(scramble(key) + _signed((salt + 1) * GOLDEN))


def bits(key: torch.Tensor, shape: Sequence[int], *, stream: int = 0) -> torch.Tensor:
    """64 random bits for each element of `shape`; draws of different `stream` under one key are
    independent.
    """
    if stream:
        key = mix(key, ~stream)
    counters = torch.arange(1, math.prod(shape) + 1, device=key.device) * _signed(GOLDEN)
    return scramble(scramble(key) + counters.reshape(tuple(shape)))


def uniform(
    key: torch.Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32, *, stream: int = 0
) -> torch.Tensor:
    """Numbers in [0, 1), multiples of 2**-b with b the bits of the dtype's significand."""
    precision = _PRECISION[dtype]
    numbers = _shift_right(bits(key, shape, stream=stream), 64 - precision)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return (numbers.to(wide) * 2.0**-precision).to(dtype)


def normal(
    key: torch.Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Standard normal numbers, by Box and Muller, in float32 or, for float64, in float64."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    radius = torch.sqrt(-2.0 * torch.log1p(-uniform(key, shape, wide, stream=1)))
    angle = (2.0 * math.pi) * uniform(key, shape, wide, stream=2)
    return (radius * torch.cos(angle)).to(dtype)


def bernoulli(key: torch.Tensor, shape: Sequence[int], probability: float) -> torch.Tensor:
    """True with the given probability, exact to 2**-32."""
    threshold = round(probability * 2**32)
    return _shift_right(bits(key, shape), 32) < threshold


def randint(key: torch.Tensor, low: int, high: int, shape: Sequence[int]) -> torch.Tensor:
    """int64 numbers in [low, high); the bias is below (high - low) / 2**63."""
    return _shift_right(bits(key, shape), 1) % (high - low) + low


def dropout(key: torch.Tensor, source: torch.Tensor, probability: float) -> torch.Tensor:
    """`source` with elements set to zero with the given probability, the others scaled up."""
    if probability == 0.0:
        return source
    if probability == 1.0:
        return torch.zeros_like(source)
    kept = bernoulli(key, source.shape, 1.0 - probability)
    return torch.where(kept, source * (1.0 / (1.0 - probability)), 0.0)
