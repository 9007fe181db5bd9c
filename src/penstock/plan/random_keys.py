"""Keys of random draws, made on the host.

A key is one 64-bit number. `mix(key, salt)` gives the key of a place below `key`: of an instance, a
call path, an iteration, an operation site. The same mixing runs on tensors in
`penstock.run.random_bits`, bit for bit. It is the finalizer of splitmix64 (Steele, Lea and Flood
2014), a bijection of the 64-bit numbers in which every input bit changes each output bit with
probability one half. Not for cryptography.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

#: The step between counters: 2**64 divided by the golden ratio, made odd.
GOLDEN = 0x9E3779B97F4A7C15
FIRST_FACTOR = 0xBF58476D1CE4E5B9
SECOND_FACTOR = 0x94D049BB133111EB
SHIFTS = (30, 27, 31)

Keys = npt.NDArray[np.uint64]


def scramble(numbers: Keys) -> Keys:
    """Each number replaced by its image under the splitmix64 finalizer."""
    with np.errstate(over="ignore"):
        numbers = (numbers ^ (numbers >> np.uint64(SHIFTS[0]))) * np.uint64(FIRST_FACTOR)
        numbers = (numbers ^ (numbers >> np.uint64(SHIFTS[1]))) * np.uint64(SECOND_FACTOR)
        return np.asarray(numbers ^ (numbers >> np.uint64(SHIFTS[2])))


def mix(key: npt.ArrayLike, salt: npt.ArrayLike) -> Keys:
    """The key of place `salt` below `key`; both broadcast, signed numbers are taken modulo 2**64.

    >>> mix(1, [0, 1]).dtype
    dtype('uint64')
    """
    with np.errstate(over="ignore"):
        return scramble(scramble(as_keys(key)) + (as_keys(salt) + np.uint64(1)) * np.uint64(GOLDEN))


def as_keys(numbers: npt.ArrayLike) -> Keys:
    """Integers as unsigned 64-bit numbers; an array even for one number, so that products wrap
    silently.
    """
    if isinstance(numbers, int):
        numbers = np.array(numbers % 2**64, dtype=np.uint64)
    return np.asarray(numbers).astype(np.uint64)


def as_signed(keys: Keys) -> npt.NDArray[np.int64]:
    """The same bits as int64, the form in which keys go to tensors."""
    return keys.view(np.int64)
