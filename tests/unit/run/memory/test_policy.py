"""Memory policies: what can be asked for, and where it holds."""

from __future__ import annotations

import threading

import pytest

import penstock as ps
from penstock.api.memory import policy_of
from penstock.errors import ArgumentError
from penstock.run.memory.policy import KINDS, bytes_of, current_policy, default_policy, in_words


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 << 30),
        ("8 gib", 8 << 30),
        ("1.5MiB", 3 << 19),
        ("500MB", 500_000_000),
        ("12kB", 12_000),
        ("100 B", 100),
        (4096, 4096),
        (0, 0),
    ],
)
def test_budgets_are_numbers_of_bytes(text, size):
    assert bytes_of(text) == size


@pytest.mark.parametrize("budget", ["8", "GiB", "8 GiBs", "-1GiB", -1, 1.5, True, b"8GiB", ""])
def test_other_budgets_are_refused(budget):
    with pytest.raises(ArgumentError) as found:
        ps.memory("swap", budget=budget)
    text = str(found.value)
    assert "the budget is no number of bytes" in text
    assert repr(budget) in text
    assert '"8GiB"' in text


@pytest.mark.parametrize("name", ["swapp", "Keep", None, 3])
def test_unknown_policies_are_refused(name):
    with pytest.raises(ArgumentError, match="there is no such policy") as found:
        ps.memory(name)
    assert all(repr(kind) in str(found.value) for kind in KINDS)


def test_a_budget_for_keep_is_refused():
    with pytest.raises(ArgumentError, match="where all values are kept"):
        ps.memory("keep", budget="8GiB")


def test_what_is_no_policy_is_refused_as_a_default():
    with pytest.raises(ArgumentError, match="memory is no memory policy"):
        ps.function(lambda x: x, memory=8)


def test_scopes_nest_and_end():
    assert current_policy() is None
    outer = ps.memory("swap", budget="1MiB")
    with outer:
        assert current_policy() == outer.policy
        with ps.memory("keep"):
            assert current_policy().kind == "keep"
            with outer:  # again
                assert current_policy() == outer.policy
        assert current_policy() == outer.policy
    assert current_policy() is None


def test_a_scope_ends_with_an_error():
    with pytest.raises(ZeroDivisionError), ps.memory("swap"):
        1 / 0  # noqa: B018
    assert current_policy() is None


def test_a_scope_holds_on_its_thread_alone():
    seen = []
    with ps.memory("swap"):
        thread = threading.Thread(target=lambda: seen.append(current_policy()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_a_default_gives_way_to_a_scope():
    policy = policy_of("recompute")
    with default_policy(policy):
        assert current_policy() == policy
    with ps.memory("swap"), default_policy(policy):
        assert current_policy().kind == "swap"
    with default_policy(None):
        assert current_policy() is None


def test_sizes_are_told_in_words():
    assert [in_words(n) for n in (3, 2048, 3 << 19, 8 << 30)] == [
        "3 B",
        "2 KiB",
        "1.5 MiB",
        "8 GiB",
    ]
