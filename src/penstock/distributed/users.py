"""Which ranks use a captured tensor: its gradient is wanted there, and an optimizer steps it there.

Use is decided by the program, not by what one call happens to launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from penstock.autodiff.call import DifferentiableCall
from penstock.distributed.run import ranks_of_devices
from penstock.ir.program import Captured
from penstock.run.executable import Executable

#: By the bits of all ranks: a program may run in several groups.
_KNOWN: WeakKeyDictionary[Executable, dict[int, dict[int, int]]] = WeakKeyDictionary()


def ranks_of_captures(executable: Executable, everyone: int) -> dict[int, int]:
    """For each captured tensor the ranks whose blocks read it or what is computed of it, as bits;
    `everyone` has a bit for each rank.
    """
    known = _KNOWN.setdefault(executable, {})
    if everyone not in known:
        known[everyone] = _find_users(executable, everyone)
    return known[everyone]


def users_of(made: DifferentiableCall, size: int, *, is_everyone: bool = False) -> list[int]:
    """For each tensor that asks for gradients the ranks that get them, as bits: all of `size`, or
    for captured tensors those that use them.
    """
    everyone = (1 << size) - 1
    if is_everyone:
        return [everyone] * len(made.places)
    captures = ranks_of_captures(made.executable, everyone)
    return [
        everyone if place.capture is None else captures.get(place.capture, 0)
        for place in made.places
    ]


def shared_tensors(made: DifferentiableCall, users: Sequence[int]) -> bytes:
    """What ranks must agree on before they exchange gradients: tensors that several get, in their
    order.
    """
    found = zip(made.places, made.tensors, users, strict=True)
    shared = [
        (place, tuple(tensor.shape), tensor.dtype)
        for place, tensor, ranks in found
        if ranks.bit_count() > 1
    ]
    return repr(shared).encode()


def _find_users(executable: Executable, everyone: int) -> dict[int, int]:
    assert executable.placement is not None
    ranks = ranks_of_devices(executable)
    read: dict[int, int] = {}
    for block, device in zip(executable.blocks, executable.placement.blocks, strict=True):
        for wire in block.node.inputs:
            read[wire.number] = read.get(wire.number, 0) | 1 << ranks[device]
    for entry in executable.graph.inputs:
        if entry.uniform is not None:  # it has slots or steers, on every rank
            read[entry.uniform.number] = everyone
    users: dict[int, int] = {}
    for uniform in executable.graph.uniforms:
        for capture in _captures_of(executable, uniform.wire.number):
            users[capture] = users.get(capture, 0) | read.get(uniform.wire.number, 0)
    return users


def _captures_of(executable: Executable, number: int) -> set[int]:
    """The captures that a uniform value is computed of."""
    uniform = executable.uniform_nodes[number]
    operation = uniform.node.operation
    if isinstance(operation, Captured):
        return {operation.index}
    found: set[int] = set()
    for wire in uniform.inputs:
        found |= _captures_of(executable, wire.number)
    return found
