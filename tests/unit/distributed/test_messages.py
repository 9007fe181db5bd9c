"""Messages: rows behind a header, digests of schedules, and the errors about them."""

from datetime import timedelta

import pytest
import torch

import penstock as ps
from penstock.distributed.failures import drifted, failed_wait, given_up
from penstock.distributed.messages import (
    HEADER,
    Header,
    RollingDigest,
    aligned,
    new_message,
    room_for,
    rows_in,
)
from penstock.errors import AgreementError, ProcessError
from penstock.plan.schedule import Copy, Span


@pytest.mark.parametrize("dtype", [torch.float64, torch.bool, torch.int16, torch.complex128])
@pytest.mark.parametrize("shape", [(3, 2), (0, 4), (5,)])
def test_rows_come_out_as_they_went_in(dtype, shape):
    rows = torch.ones(shape, dtype=dtype)
    header = Header(b"12345678", 7)
    message = new_message(header, rows)
    assert message.shape == room_for(shape, dtype).shape
    assert Header.unpack(message) == header
    assert torch.equal(rows_in(message, shape, dtype), rows)


def test_sizes_are_rounded_up_to_what_is_aligned():
    assert [aligned(size) for size in (0, 1, HEADER, HEADER + 1)] == [0, 16, 16, 32]


def test_a_digest_depends_on_every_instruction_and_on_their_order():
    first, second = Copy(Span(0, 0, 2), Span(1, 0, 2)), Copy(Span(0, 0, 2), Span(1, 2, 2))
    found = set()
    for windows in ([[first]], [[second]], [[first], [second]], [[second], [first]]):
        digest = RollingDigest()
        for window in windows:
            digest.add(window)
        found.add(digest.value)
    assert len(found) == 4


def test_ranks_that_have_drifted_apart_are_named():
    error = drifted(0, 2, "results", Header(b"a" * 8, 3), Header(b"b" * 8, 4))
    assert isinstance(error, AgreementError)
    assert str(error) == (
        "ranks 0 and 2 have drifted apart: results is not what was planned.\n"
        "  rank 0 expects  operation 3 of schedule 6161616161616161\n"
        "  rank 2 sent     operation 4 of schedule 6262626262626262\n"
        "Call the same functions with the same arguments in the same order on every rank."
    )


def test_what_torch_says_about_a_connection_is_cut_short():
    torch_error = RuntimeError("[gloo/pair.cc:1] Connection closed by peer [::1]:2. Some advice.")
    text = str(failed_wait(1, "receiving rows", 3, None, torch_error))
    assert text.startswith("rank 3 has ended, or cannot be reached.\n")
    assert "  the connection  Connection closed by peer [::1]:2\n" in text
    late = str(failed_wait(1, "receiving rows", 3, timedelta(seconds=5), torch_error))
    assert late.startswith("rank 3 did not answer within 5 s.\n  rank 1 was  receiving rows\n")


def test_the_reason_of_another_rank_is_quoted():
    text = str(given_up(0, "receiving results", "rank 1 failed in call 2: ValueError: no"))
    assert "  the reason  rank 1 failed in call 2: ValueError: no\n" in text
    assert "  rank 0 was  receiving results\n" in text


@ps.function
def on_two_ranks(x):
    with ps.device("rank:0"):
        x = torch.sin(x)
    with ps.device("rank:1"):
        return torch.cos(x)


def test_several_processes_without_a_group_are_told_to_make_one(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ProcessError, match="but there is no process group"):
        on_two_ranks(torch.ones(2))


def test_one_process_runs_all_ranks():
    assert torch.allclose(on_two_ranks(torch.ones(2)), torch.ones(2).sin().cos())
