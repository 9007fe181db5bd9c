"""Joins the processes of a job to a group, and names those that do not come.

Each process signs in at the job's store before torch makes the group. torch itself waits for all of
them as well, but says only how many have come.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from penstock.errors import ProcessError, report

#: Seconds between two looks.
_INTERVAL = 0.05


def join_processes(
    backend: str | None = None, *, timeout: timedelta = timedelta(minutes=5)
) -> None:
    """Make the process group of a job, as `torch.distributed.init_process_group` does.

    Processes are started by `torchrun`, or have its variables: `RANK`, `WORLD_SIZE`, `MASTER_ADDR`
    and `MASTER_PORT`. If one is not there in time, all others raise an error that names it.

    Arguments:
        backend: as in `init_process_group`.
        timeout: how long to wait for a process to start, and later for any message of one.
    """
    rank, size = int(_variable("RANK")), int(_variable("WORLD_SIZE"))
    end = time.monotonic() + timeout.total_seconds()
    store = _open_store(rank, timeout)
    missing = _await_all(store, rank, size, end)
    if missing:
        raise _not_started(rank, missing, size, timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)


def _open_store(rank: int, timeout: timedelta) -> Store:
    """The store of the job: rank 0 keeps it, or torchrun's agent."""
    host, port = _variable("MASTER_ADDR"), int(_variable("MASTER_PORT"))
    is_kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    keeps = rank == 0 and not is_kept
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            host, port, is_master=keeps, timeout=timeout, wait_for_workers=False, multi_tenant=True
        )
    except RuntimeError as error:
        if keeps:
            raise _no_store(host, port, error) from None
        raise _not_started(rank, [0], int(_variable("WORLD_SIZE")), timeout) from None
    return PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _no_store(host: str, port: int, error: RuntimeError) -> ProcessError:
    return ProcessError(
        report(
            "rank 0 cannot open the job's store.",
            facts=[("its address", f"{host}:{port}"), ("torch says", str(error).splitlines()[0])],
            todo="Give all processes a MASTER_ADDR of rank 0's machine and a MASTER_PORT that is "
            "free.",
        )
    )


def _await_all(store: Store, rank: int, size: int, end: float) -> list[int]:
    """Sign in, and wait for all others; the ranks that have not come in time."""
    store.set(f"started {rank}", "")
    missing = [other for other in range(size) if other != rank]
    while True:
        missing = [other for other in missing if not store.check([f"started {other}"])]
        if not missing or time.monotonic() > end:
            return missing
        time.sleep(_INTERVAL)


def _not_started(rank: int, missing: list[int], size: int, timeout: timedelta) -> ProcessError:
    names = ", ".join(map(str, missing))
    what = f"rank {names} has" if len(missing) == 1 else f"ranks {names} have"
    return ProcessError(
        report(
            f"{what} not started within {timeout.total_seconds():g} s.",
            facts=[
                (f"rank {rank} was", f"waiting for all {size} processes of the job"),
                ("the store", f"{_variable('MASTER_ADDR')}:{_variable('MASTER_PORT')}"),
            ],
            todo="See whether they were started with the same address, port and WORLD_SIZE; "
            "`join_processes(timeout=...)` gives them more time.",
        )
    )


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise ProcessError(
            report(
                "this process does not know which of several it is.",
                facts=[("not set", name)],
                todo="Start it with `torchrun`, which sets RANK, WORLD_SIZE, MASTER_ADDR and "
                "MASTER_PORT.",
            )
        )
    return value
