"""Whatever goes wrong on one rank, every other gets an error that says so, within its limit."""

import json
from pathlib import Path

import pytest

from tests.processes.launch import end_processes, start_processes

SCRIPT = Path(__file__).parent / "scripts" / "faults.py"

#: The seconds within which every rank must have its error; the limits of the groups are 40 and 2.
SOON = 30.0


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What ranks 0 and 1 got in each scenario."""
    folder = tmp_path_factory.mktemp("faults")
    started = start_processes(SCRIPT, 5, folder)
    codes, texts = end_processes(started, folder, 150.0)
    assert codes == [0, 0, -9, -9, -9], texts
    lines = [text.splitlines() for text in texts[:2]]
    assert all(line[-1] == "ended" for line in lines), texts
    ranks = [[json.loads(line) for line in rank if line.startswith("{")] for rank in lines]
    return {entry["name"]: entries for entries in zip(*ranks, strict=True) for entry in entries}


DISAGREEMENTS = {
    "other_rows": "the ranks differ in the data.",
    "other_steps": "the ranks differ in the inputs that steer.",
    "other_seed": "the ranks differ in the seed of random operations.",
    "other_program": "the ranks differ in the program.",
    "other_order": "the ranks differ in the operation that comes next.",
    "other_index": "the ranks differ in the data.",
    "other_index_on_a_queue": "the ranks differ in the data.",
    "other_leaves": "the ranks differ in the tensors that ask for gradients.",
    "other_leaves_twice": "the ranks differ in the tensors that ask for gradients.",
    "other_outputs": "the ranks differ in the outputs that have gradients.",
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_ranks_that_differ_are_told_so_everywhere_and_can_go_on(found, name):
    for entry in found[name]:
        assert entry["error"] == "AgreementError"
        assert entry["text"].startswith(DISAGREEMENTS[name])
        assert "rank 0  " in entry["text"]
        assert "rank 1  " in entry["text"]
        if name != "other_order":  # there, ranks have made different numbers of calls from then on
            assert entry["again"] == ""
    assert found[name][0]["text"] == found[name][1]["text"]


def test_an_operation_that_differs_is_named(found):
    text = found["other_order"][0]["text"]
    assert "rank 0  the backward pass of call 1\n" in text
    assert "rank 1  call 2\n" in text


def test_an_error_that_every_rank_raises_leaves_the_group_usable(found):
    for entry in found["fault_of_an_instance"]:
        assert entry["error"] == "IndexRangeError"
        assert entry["again"] == ""


def test_a_rank_that_raises_is_quoted_by_the_others(found):
    other, failing = found["bad_index"]
    assert failing["error"] == "IndexError"
    assert other["error"] == "ProcessError"
    assert "rank 1 failed in call 1: IndexError: " in other["text"]
    assert "rank 0 was" in other["text"]
    assert other["again"] == failing["again"] == "ProcessError"
    assert other["seconds"] < SOON


def test_an_interrupt_while_one_rank_plans_ends_the_waits_of_others(found):
    waiting, interrupted = found["interrupted_while_planning"]
    assert interrupted["error"] == ""
    assert "rank 1 was interrupted: KeyboardInterrupt" in waiting["text"]
    assert waiting["seconds"] < SOON


def test_a_branch_of_a_kept_plan_that_has_failed_is_planned_once_more(found):
    other, failing = found["failure_in_a_new_branch"]
    assert failing["error"] == "ValueError"
    assert "rank 1 failed in call 2: ValueError: out of luck" in other["text"]
    for entry in found["the_branch_once_more"]:
        assert entry["error"] == entry["again"] == "", entry["text"]


def test_calls_of_two_threads_are_never_mixed(found):
    for entry in found["two_threads"]:
        assert entry["error"] == entry["again"] == "", entry["text"]


def test_a_message_beyond_the_limit_is_an_error_that_names_rank_and_operation(found):
    waiting, _ = found["late_message"]
    assert waiting["error"] == "ProcessError"
    assert waiting["text"].startswith("rank 1 did not answer within 2 s.\n")
    assert "rank 0 was  receiving rows for block chain" in waiting["text"]
    assert "init_process_group(timeout=...)" in waiting["text"]
    assert waiting["seconds"] < SOON


def test_a_rank_that_makes_no_call_is_named(found):
    waiting, _ = found["no_call"]
    assert waiting["error"] == "ProcessError"
    assert waiting["text"].startswith("rank 1 did not answer within 2 s.\n")
    assert "rank 0 was  receiving its arguments" in waiting["text"]


def test_a_rank_that_the_group_does_not_have_is_refused(found):
    for entry in found["rank_that_is_not_there"]:
        assert entry["error"] == "ArgumentError"
        assert "torchrun --nproc-per-node 6" in entry["text"]
        assert entry["again"] == ""


@pytest.mark.parametrize(
    "name", ["killed_in_forward", "killed_in_backward", "killed_before_its_predicate"]
)
def test_a_killed_rank_is_an_error_on_every_survivor(found, name):
    for entry in found[name]:
        assert entry["error"] == "ProcessError"
        assert "rank 2 has ended, or cannot be reached." in entry["text"]
        assert " was " in entry["text"]
        assert "torchrun --max-restarts" in entry["text"]
        assert entry["again"] == "ProcessError"
        assert entry["seconds"] < SOON
