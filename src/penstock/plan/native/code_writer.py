"""Writes the instructions of the kernel: pieces of code, registers, lists and constants.

Registers are numbered anew in each piece; the first hold constants, which all pieces share, then
come the rows and the fields of the event that the piece is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from penstock.plan.linked import Linked
from penstock.plan.native import opcodes as op
from penstock.plan.native.layout import Layout
from penstock.plan.native.program import NotNative

#: Events inside each other; more are a recursion that never ends, or close to it.
MOST_NESTED = 200


class CodeWriter:
    """Code of one linked graph, as far as it is written."""

    def __init__(self, linked: Linked) -> None:
        self.linked = linked
        self.layout = Layout(linked)
        self.code: list[list[int]] = []
        self.lists: list[int] = []
        #: The register of each constant.
        self.constants: dict[int, int] = {}
        #: The next register of the piece being written, and how many there are in all.
        self.register = self.registers = op.ROWS_REGISTER + 1
        self.nested = 0

    def _piece(self, write: Callable[[], None], fields: int = 0) -> int:
        """Write a piece of code; where it begins. Its fields are in the first registers."""
        start = len(self.code)
        self.register = op.ROWS_REGISTER + 1 + fields
        write()
        self._do(op.END)
        self.registers = max(self.registers, self.register)
        return start * op.WIDTH

    def _do(self, name: int, *operands: int, results: int = 0) -> int:
        """One instruction; its first result."""
        result = self.register
        self.register += results
        words = [name, result, *operands]
        assert len(words) <= op.WIDTH
        self.code.append([*words, *([0] * (op.WIDTH - len(words)))])
        return result

    def _list(self, values: Sequence[int]) -> int:
        start = len(self.lists)
        self.lists.extend(values)
        return start

    def _constant(self, value: int) -> int:
        number = self.constants.setdefault(int(value), len(self.constants))
        if number >= op.ROWS_REGISTER:
            raise NotNative("a great many constants")
        return number

    @contextmanager
    def _unless_empty(self, rows: int) -> Iterator[None]:
        """What is written inside is left out for no rows."""
        self.nested += 1
        if self.nested > MOST_NESTED:
            raise NotNative("calls without end")
        self._do(op.SKIP_EMPTY, rows, 0)
        skip = self.code[-1]
        yield
        skip[3] = len(self.code) * op.WIDTH
        self.nested -= 1

    def _column(self, rows: int, offset: int) -> int:
        return self._do(op.COLUMN, rows, offset, results=1)
