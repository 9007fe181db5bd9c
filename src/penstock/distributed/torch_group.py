"""What is asked of `torch.distributed` beyond its documented calls, in one place.

A process group belongs to torch; nothing of it is kept here. The backend of CPU tensors carries
all messages but those of tensors on devices that have a backend of their own.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import (
    BroadcastOptions,
    PrefixStore,
    ProcessGroupGloo,
    Store,
)

from penstock.errors import ProcessError, report

#: The tag of the message that nobody ever sends.
_NEVER = 1 << 20

_HOST = torch.device("cpu")


def are_several() -> bool:
    """Whether this process is one of several."""
    if dist.is_available() and dist.is_initialized():
        return True
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return False
    raise ProcessError(
        report(
            "this program has places in several processes, but there is no process group.",
            facts=[("WORLD_SIZE", os.environ["WORLD_SIZE"])],
            todo="Call `torch.distributed.init_process_group()` before the first call.",
        )
    )


def default_group() -> dist.ProcessGroup:
    """The group of all processes."""
    group = dist.group.WORLD
    assert group is not None
    return group


def check_backend(group: dist.ProcessGroup) -> None:
    """Make sure that a group carries tensors on the host: predicates are there."""
    try:
        group._get_backend(_HOST)
    except RuntimeError:
        raise ProcessError(
            report(
                "the process group has no backend for tensors on the host.",
                facts=[("its backend", dist.get_backend(group))],
                todo="Call `torch.distributed.init_process_group()` without a backend, or with "
                '"cpu:gloo,cuda:nccl".',
            )
        ) from None


def carries(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether tensors of a device travel as they are, and not through the host."""
    try:
        backend = group._get_backend(device)
    except RuntimeError:
        return False
    return device.type == "cpu" or backend.name() != "gloo"


def limit_of(group: dist.ProcessGroup) -> timedelta:
    """How long the group waits for anything."""
    limit: timedelta = group._get_backend(_HOST).options._timeout
    return limit


def store_of(group: dist.ProcessGroup) -> Store:
    """The store of the job, in a corner of its own for this group and this attempt: torchrun may
    keep the store when it starts processes again.
    """
    store = dist.distributed_c10d._get_default_store()
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"penstock/{attempt}/{group.group_name}", store)


def pair_up(group: dist.ProcessGroup) -> dict[int, Any]:
    """For each other rank a backend for the two alone and tensors on the host. All ranks call it,
    once, and go through their pairs in one order of all.

    gloo's own `send` and `recv` spin where processes share cores, and are ten times slower there
    than a broadcast between two.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if size == 2:
        return {1 - rank: group._get_backend(_HOST)}
    pairs = {}
    for peer in range(size):
        if peer != rank:
            first, second = sorted((rank, peer))
            store = PrefixStore(f"pair {first} {second}", store_of(group))
            pairs[peer] = ProcessGroupGloo(store, int(rank > peer), 2, limit_of(group))
    return pairs


def exchange(
    group: dist.ProcessGroup,
    pair: Any,
    message: torch.Tensor,
    source: int,
    target: int,
) -> dist.Work:
    """Begin to send or to receive a message, as the rank at hand is its source or its target."""
    if message.device.type == "cpu":
        return broadcast(pair, message, int(source > target))
    if dist.get_rank(group) == source:
        work = dist.isend(message, group=group, group_dst=target, tag=_tag_of(message))
    else:
        work = dist.irecv(message, group=group, group_src=source, tag=_tag_of(message))
    assert work is not None
    return work


def broadcast(group: Any, message: torch.Tensor, source: int) -> dist.Work:
    """Begin to send a message to all ranks, or to receive it: as `dist.broadcast` does, without
    what that looks up each time.
    """
    work: dist.Work = group.broadcast([message], _from(source))
    return work


@cache
def _from(source: int) -> BroadcastOptions:
    options = BroadcastOptions()
    options.rootRank, options.rootTensor, options.asyncOp = source, 0, True
    return options


def _tag_of(message: torch.Tensor) -> int:
    """The tag of a message: gloo ends the process if one is longer than the room for it, so only
    those of one size may meet.
    """
    return _NEVER + 1 + message.numel() % _NEVER


def is_timeout(error: RuntimeError) -> bool:
    """Whether a wait has failed because it lasted too long."""
    return "timed out" in str(error).lower() or "timeout" in str(error).lower()


def break_waits(backend: Any) -> None:
    """End all waits of this process on a backend with an error, from another thread.

    gloo closes its connections when a wait runs out of time, so one that cannot succeed is begun;
    from each rank, since a wait for one that has ended does not run out of time.
    """
    for peer in set(range(backend.size())) - {backend.rank()}:
        with suppress(RuntimeError):  # that is what it was begun for
            work = backend.recv([torch.empty(1, dtype=torch.uint8)], peer, _NEVER)
            work.wait(timedelta(milliseconds=1))


def host_backend(group: dist.ProcessGroup) -> Any:
    """What carries tensors on the host."""
    return group._get_backend(_HOST)
