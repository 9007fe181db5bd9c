"""How rows of different lengths are put into buckets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.plan.buckets import LEAST_BUCKET, choose_buckets, on_grid


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=60), st.integers(1, 2000))
def test_a_bucket_is_long_enough_and_on_the_grid(lengths, width):
    buckets = choose_buckets(np.array(lengths), width)
    assert (buckets >= lengths).all()
    assert (on_grid(buckets) == buckets).all()
    assert (buckets[np.argsort(lengths, kind="stable")][:-1] <= np.sort(buckets)[1:]).all()


def test_few_small_rows_share_a_bucket():
    assert set(choose_buckets(np.array([2, 9, 5, 30]), 4)) == {30}


def test_wide_elements_are_worth_more_launches():
    lengths = np.array([5] * 50 + [100] * 50)
    assert len(set(choose_buckets(lengths, 1))) == 1
    assert set(choose_buckets(lengths, 1000)) == {LEAST_BUCKET, 104}


def test_the_grid_wastes_an_eighth_at_most():
    lengths = np.arange(LEAST_BUCKET, 3000)
    assert (on_grid(lengths) <= lengths * 1.125).all()


def test_fewer_buckets_pay_in_a_loop():
    lengths = np.arange(5, 101).repeat(2)
    assert len(set(choose_buckets(lengths, 128))) > 1
    assert set(choose_buckets(lengths, 128, is_in_loop=True)) == {104}
