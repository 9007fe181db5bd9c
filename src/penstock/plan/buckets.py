"""How long padded sequences are: rows of different lengths run together, up to a bound on waste.

The sorted lengths are cut into groups such that the numbers that are padded, and what each launch
costs by itself, are least. Ends of groups lie on a coarse grid, so that rows that come later find
the same ones.
"""

from __future__ import annotations

import numpy as np

from penstock.plan.schedule import Integers

#: What a launch costs, in numbers that could be read and written in the same time; and in a loop,
#: where rows of one bucket need no thought at the next iteration, and break no strip of launches.
LAUNCH_COST, COST_IN_LOOP = 1 << 18, 1 << 20

#: Buckets are at least that long; longer ones are multiples of an eighth of a power of two.
LEAST_BUCKET = 8


def choose_buckets(lengths: Integers, width: int, *, is_in_loop: bool = False) -> Integers:
    """A padded length for each sequence whose elements have `width` numbers each."""
    cost = COST_IN_LOOP if is_in_loop else LAUNCH_COST
    ends, which, counts = np.unique(on_grid(lengths), return_inverse=True, return_counts=True)
    return _grouped_ends(ends, counts, width, cost)[which.reshape(-1)]


def on_grid(lengths: Integers) -> Integers:
    """The least lengths of the grid that are not below."""
    least = np.maximum(lengths, LEAST_BUCKET)
    step = 1 << np.maximum(np.ceil(np.log2(least)).astype(np.int64) - 4, 0)
    rounded: Integers = -(-least // step) * step
    return rounded


def _grouped_ends(ends: Integers, counts: Integers, width: int, cost: int) -> Integers:
    """For each end the end of its group, in the cheapest way to cut them into groups."""
    before = np.concatenate(([0], np.cumsum(counts)))
    best, cut = [0.0], [0]
    for last, end in enumerate(ends):
        rows = before[last + 1] - before[: last + 1]
        costs = np.array(best) + (rows * end * width + cost)
        first = int(np.argmin(costs))
        best.append(float(costs[first]))
        cut.append(first)
    grouped = np.empty_like(ends)
    last = len(ends)
    while last:
        grouped[cut[last] : last] = ends[last - 1]
        last = cut[last]
    return grouped
