"""The process group that programs run in: that of all processes, or one that a user names."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch.distributed as dist

from penstock.distributed import torch_group
from penstock.distributed.transport import Transport


class _State(threading.local):
    #: The group of the innermost `process_group`; None for the group of all processes.
    group: dist.ProcessGroup | None = None


_state = _State()

#: One transport for each group, as long as the group lives.
_transports: WeakKeyDictionary[dist.ProcessGroup, Transport] = WeakKeyDictionary()


@contextmanager
def process_group(group: dist.ProcessGroup | None) -> Iterator[None]:
    """Run programs in some processes only: `rank:1` is the second of the group.

    Several groups run replicas of a program, each with other data; `DistributedDataParallel` over
    the processes of one rank adds up their gradients.

    Arguments:
        group: what `torch.distributed.new_group` returns; None for all processes.
    """
    before, _state.group = _state.group, group
    try:
        yield
    finally:
        _state.group = before


def current_transport() -> Transport:
    """This process's end of all exchanges with the group that holds here."""
    group = _state.group or torch_group.default_group()
    if group not in _transports:
        _transports[group] = Transport(group)
    return _transports[group]
