"""When loops whose conditions are computed on a CUDA device run there as a whole, as CUDA graphs.

Only calls that leave no tape run so: a graph keeps nothing of its iterations. They run another form
of the program, which is made when the first such call comes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from penstock.calls.autocast import OFF
from penstock.ir.program import Program
from penstock.passes.whole_loops import is_whole_loop
from penstock.run.fused.setting import Fusion
from penstock.run.native.choice import are_loops_native
from penstock.run.native.while_nodes import has_while_nodes
from penstock.run.native.whole_block import WholeLoopBlock

if TYPE_CHECKING:
    from penstock.run.executable import Executable

log = logging.getLogger("penstock")


class WholeLoops:
    """The form of a program in which such loops are closed."""

    __slots__ = ("_form", "_make")

    def __init__(self, executable: Executable, devices: set[str], is_form: bool) -> None:
        program, max_depth = executable.program, executable.max_depth
        is_apt = not is_form and executable.placement is None and executable.autocast == OFF
        #: Compiles the form; None where there is none.
        self._make: Callable[[], Executable] | None = None
        if is_apt and are_loops_native() and has_graphs(devices) and _has_whole_loops(program):
            self._make = partial(type(executable), program, max_depth, closes_whole_loops=True)
        self._form: Executable | None = None

    def chosen(self) -> Executable | None:
        """The form, where a call that leaves no tape is to be run with it."""
        if self._make is None or Fusion.mode == "never":
            return None
        if not has_while_nodes():
            _say_what_is_missing()
            return None
        if self._form is None:
            made = self._make()
            if not any(isinstance(block, WholeLoopBlock) for block in made.blocks):
                self._make = None
                return None
            self._form = made
        return self._form


def has_graphs(devices: set[str]) -> bool:
    """Whether some values are on devices that have such graphs."""
    return any(device.startswith("cuda") for device in devices)


def _has_whole_loops(program: Program) -> bool:
    for function in program.functions:
        for node in function.body.walk():
            inside = [item for body in node.bodies for item in body.walk()]
            if is_whole_loop(node, inside):
                return True
    return False


@lru_cache(maxsize=1)
def _say_what_is_missing() -> None:
    log.warning(
        "the host reads the conditions of loops on CUDA devices: pip install cuda-bindings runs "
        "such loops as CUDA graphs"
    )
