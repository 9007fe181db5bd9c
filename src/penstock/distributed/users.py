"""Which ranks use a captured tensor: its gradient is wanted there, and an optimizer steps it there.

Use is decided by the program, not by what one call happens to launch.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from penstock.distributed.exchanges import Exchanges
from penstock.ir.program import Captured
from penstock.run.engine import Executable

_KNOWN: WeakKeyDictionary[Executable, dict[int, int]] = WeakKeyDictionary()


def ranks_of_capture(executable: Executable, exchanges: Exchanges, capture: int) -> int:
    """The ranks whose blocks read a captured tensor or what is computed of it, as bits."""
    if executable not in _KNOWN:
        _KNOWN[executable] = _find_users(executable, exchanges)
    return _KNOWN[executable].get(capture, 0)


def _find_users(executable: Executable, exchanges: Exchanges) -> dict[int, int]:
    read: dict[int, int] = {}
    for number, rank in enumerate(exchanges.places):
        for wire in executable.blocks[number].node.inputs:
            read[wire.number] = read.get(wire.number, 0) | 1 << rank
    for entry in executable.graph.inputs:
        if entry.uniform is not None:  # it has slots or steers, on every rank
            read[entry.uniform.number] = exchanges.everyone
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
