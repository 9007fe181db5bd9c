"""A process that never starts is named by all others, within the limit."""

import socket
from datetime import timedelta

import pytest
import torch.distributed as dist

import penstock as ps
from penstock.errors import ProcessError

SHORT = timedelta(seconds=0.5)


@pytest.fixture
def job(monkeypatch):
    """A job of three processes, none of which is there yet; gives its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"WORLD_SIZE": 3, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    return port


def test_ranks_that_do_not_start_are_named(job, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ProcessError) as failure:
        ps.join_processes("gloo", timeout=SHORT)
    assert str(failure.value) == (
        "ranks 1, 2 have not started within 0.5 s.\n"
        "  rank 0 was  waiting for all 3 processes of the job\n"
        f"  the store   127.0.0.1:{job}\n"
        "See whether they were started with the same address, port and WORLD_SIZE; "
        "`join_processes(timeout=...)` gives them more time."
    )
    assert not dist.is_initialized()


def test_so_is_the_one_that_keeps_the_store(job, monkeypatch):
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(ProcessError, match=r"rank 0 has not started within 0.5 s\."):
        ps.join_processes("gloo", timeout=SHORT)


def test_a_process_that_is_alone_is_not_kept_waiting(job, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    try:
        ps.join_processes("gloo", timeout=timedelta(seconds=20))
        assert dist.get_world_size() == 1
    finally:
        dist.destroy_process_group()


def test_a_process_that_nobody_has_started_as_one_of_several_is_told_so(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ProcessError, match="not set  RANK\nStart it with `torchrun`"):
        ps.join_processes()


def test_a_port_that_is_taken_is_named(job, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    with socket.socket() as other:
        other.bind(("127.0.0.1", job))
        other.listen()
        with pytest.raises(ProcessError) as failure:
            ps.join_processes("gloo", timeout=SHORT)
    text = str(failure.value)
    assert text.startswith(
        f"rank 0 cannot open the job's store.\n  its address  127.0.0.1:{job}\n  torch says   "
    )
    assert text.endswith(
        "Give all processes a MASTER_ADDR of rank 0's machine and a MASTER_PORT that is free."
    )
