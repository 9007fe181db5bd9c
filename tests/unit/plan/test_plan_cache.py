"""Plans are kept by structure; what is found is as good as what is planned anew."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from penstock.plan.plan_cache import PlanCache
from penstock.plan.recorded import StepPlanner
from tests.unit.plan.random_steps import chain, digest, drop_all, run_random
from tests.unit.plan.recorded_scope import Scope, launches

POLICIES = ["rank", "depth", "agenda"]

every_policy = pytest.mark.parametrize("policy", POLICIES)


def freeze(item) -> None:
    """No array in here can be written to any more."""
    if isinstance(item, np.ndarray):
        item.setflags(write=False)
    elif isinstance(item, tuple | list):
        for part in item:
            freeze(part)


def freeze_all(cache: PlanCache) -> None:
    for flush, _ in cache._entries.values():
        freeze(flush)


@every_policy
@pytest.mark.parametrize("seed", range(8))
def test_a_repeated_structure_is_not_planned_again_but_draws_anew(policy, seed, monkeypatch):
    cache = PlanCache()
    first = run_random(Scope(policy, seed=1, cache=cache), seed)
    freeze_all(cache)
    monkeypatch.setattr(StepPlanner, "_plan", None)
    again = run_random(Scope(policy, seed=1, cache=cache), seed)
    other = Scope(policy, seed=2, cache=cache)
    run_random(other, seed)
    assert (cache.hits, cache.misses) == (8, 4)
    assert [digest(items) for items in first] == [digest(items) for items in again]
    assert digest(first[-1]) == digest(run_random(Scope(policy, seed=1, cache=cache), seed)[-1])


@every_policy
@pytest.mark.parametrize("seed", range(8))
def test_what_follows_a_cached_plan_is_planned_as_after_an_analysed_one(policy, seed):
    cache = PlanCache()
    run_random(Scope(policy, cache=cache), seed, flushes=2)
    freeze_all(cache)
    scopes = [Scope(policy, cache=cache), Scope(policy)]
    for scope in scopes:
        run_random(scope, seed, flushes=2)
    rest = [run_random(scope, seed + 100) for scope in scopes]
    assert [digest(items) for items in rest[0]] == [digest(items) for items in rest[1]]
    assert cache.hits == 2
    for scope in scopes:
        drop_all(scope)


def test_policies_do_not_share_plans():
    cache = PlanCache()
    for policy in POLICIES:
        run_random(Scope(policy, cache=cache), 3, flushes=1)
    assert (cache.hits, cache.misses) == (0, 3)


def test_what_is_kept_and_dropped_is_part_of_the_structure():
    cache = PlanCache()
    for kept in ([], [0], [0, 1]):
        scope = Scope(cache=cache)
        chain(scope, 1, 0)
        scope.flush(kept)
        scope.flush([], kept)
    assert cache.hits == 0


def test_instances_are_those_of_the_present_flush():
    cache = PlanCache()
    for instance in (4, 9):
        scope = Scope(cache=cache)
        chain(scope, 2, instance)
        scope.planner.flush(scope.recorded([]))
        assert [rows.tolist() for rows in scope.planner.launched] == [[instance]] * 3
    assert cache.hits == 1


def test_a_cache_is_bounded_by_entries_and_by_bytes():
    small = PlanCache(most_entries=2)
    for length in range(5):
        scope = Scope(cache=small)
        chain(scope, length, 0)
        scope.flush([])
    assert len(small) == 2
    one = small.bytes
    tight = PlanCache(most_bytes=one)
    for length in range(5):
        scope = Scope(cache=tight)
        chain(scope, length, 0)
        scope.flush([])
    assert 1 <= len(tight) <= 3
    assert tight.bytes <= one
    tight.clear()
    assert (len(tight), tight.bytes) == (0, 0)


def test_instructions_of_a_cached_plan_belong_to_the_caller():
    cache = PlanCache()
    for _ in range(2):
        scope = Scope(cache=cache)
        chain(scope, 2, 0)
        found = scope.flush([])
        assert len(launches(found)) == 3
        found.clear()
    assert cache.hits == 1


def test_threads_share_a_cache():
    cache = PlanCache(most_entries=5)

    def use(number: int) -> None:
        scope = Scope(seed=number, cache=cache)
        run_random(scope, number % 3, flushes=3, steps=20)
        drop_all(scope)

    for number in range(3):  # kinds are numbered here, not by threads that race for it
        run_random(Scope(), number, flushes=3, steps=20)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(12)))
    assert cache.hits + cache.misses == 12 * 4
    assert len(cache) <= 5
