"""What comes out of the kernel, as instructions: records of integers become launches, stores and
copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.ir.graph import Home, Node
from penstock.plan.host_code import dtype_of
from penstock.plan.native import opcodes as op
from penstock.plan.native.program import NativeProgram
from penstock.plan.schedule import (
    Array,
    Chunk,
    Copy,
    Hosted,
    Instruction,
    Integers,
    Launch,
    Operand,
    Picks,
    Shared,
    Span,
    Store,
)


class Records(NamedTuple):
    """Records of one window: their shapes, the integers that they list, and where arenas grew."""

    #: The number of the first record.
    first: int
    heads: Integers
    data: Integers
    #: For each chunk the record that it comes before, its arena, its first slot and its size; in
    #: this order.
    chunks: list[list[int]]
    #: Instructions that are no records, the first of all; with a launch the instances of its rows.
    given: Sequence[tuple[Instruction, Integers | None]] = ()

    def parted(self) -> Iterator[Records]:
        """What is no record, if there is something, and what is: native code runs records alone."""
        ahead = [chunk for chunk in self.chunks if self.given and chunk[0] <= self.first]
        if self.given:
            yield self._replace(heads=self.heads[:0], chunks=ahead)
        if len(self.heads) or not self.given:
            first, chunks = self.first + len(self.given), self.chunks[len(ahead) :]
            yield self._replace(first=first, chunks=chunks, given=())


#: No records.
NOTHING = Records(0, np.empty(0, np.int64), np.empty(0, np.int64), [])


class _Form(NamedTuple):
    """What is the same for all launches of a block."""

    #: For each operand the uniform value that it is, its arena, or the dtype of its host values.
    operands: tuple[Shared | int | str, ...]
    targets: tuple[int, ...]
    #: How many operands and results a record tells of.
    listed: int

    @staticmethod
    def of(operands: Sequence[Shared | int | str], targets: Sequence[int]) -> _Form:
        """The form of launches with these operands and targets."""
        told = sum(type(operand) is not Shared for operand in operands)
        return _Form(tuple(operands), tuple(targets), told + len(targets))

    def padded(self, arena: int, which: int) -> _Form:
        """The form of launches that take one operand from an arena of padded copies, and behind all
        the lengths.
        """
        places = [k for k, operand in enumerate(self.operands) if type(operand) is not Shared]
        operands = [*self.operands, "int64"]
        operands[places[which]] = arena
        return _Form.of(operands, self.targets)


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """Makes instructions of records."""

    arenas: tuple[str, ...]
    forms: tuple[_Form, ...]

    @staticmethod
    def of(program: NativeProgram) -> Decoder:
        """The decoder of a program's records."""
        dtypes = tuple(kind.dtype for kind in program.arenas)
        return Decoder(dtypes, tuple(_form(node, program) for node in program.blocks))

    def decode(self, records: Records) -> Iterator[tuple[Instruction, Integers | None]]:
        """Each instruction; with a launch the instances of its rows."""
        heads, chunks = records.heads.tolist(), records.chunks
        grown, number, at = 0, records.first, 0
        if records.given:
            while grown < len(chunks) and chunks[grown][0] <= number:
                yield Chunk(*chunks[grown][1:]), None
                grown += 1
            yield from records.given
            number += len(records.given)
        while at < len(heads):
            while grown < len(chunks) and chunks[grown][0] <= number:
                yield Chunk(*chunks[grown][1:]), None
                grown += 1
            if heads[at] == op.LAUNCH_RECORD:
                form = self.forms[heads[at + 1]]
                yield self._launch(form, heads, at, records.data)
                at += 4 + 3 * form.listed
            elif heads[at] == op.PADDED_RECORD:
                form = self.forms[heads[at + 1]].padded(*heads[at + 5 : at + 7])
                launch, instances = self._launch(form, heads, at, records.data, op.PADDED_HEAD)
                yield launch._replace(block=heads[at + 4]), instances
                at += op.PADDED_HEAD + 3 * form.listed
            else:
                is_copy = heads[at] == op.COPY_RECORD
                find = self._copy if is_copy else self._store
                yield find(heads, at, records.data), None
                at += 10
            number += 1

    def _launch(
        self, form: _Form, heads: list[int], at: int, data: Integers, head: int = 4
    ) -> tuple[Launch, Integers]:
        _, block, rows, first = heads[at : at + 4]
        at += head
        operands: list[Operand] = []
        for operand in form.operands:
            if type(operand) is Shared:
                operands.append(operand)
                continue
            if type(operand) is int:
                operands.append(_slots(operand, heads, at, data))
            else:
                operands.append(Hosted(_values(operand, heads, at, data)))  # type: ignore[arg-type]
            at += 3
        targets = []
        for arena in form.targets:
            targets.append(_slots(arena, heads, at, data))
            at += 3
        return Launch(block, rows, tuple(operands), tuple(targets)), data[first : first + rows]

    def _copy(self, heads: list[int], at: int, data: Integers) -> Copy:
        arena = heads[at + 1]
        return Copy(_slots(arena, heads, at + 4, data), _slots(arena, heads, at + 7, data))

    def _store(self, heads: list[int], at: int, data: Integers) -> Store:
        arena = heads[at + 1]
        values = _values(self.arenas[arena], heads, at + 4, data)
        return Store(values, _slots(arena, heads, at + 7, data))


def _form(node: Node, program: NativeProgram) -> _Form:
    operands: list[Shared | int | str] = []
    for wire in node.inputs:
        if wire.home is Home.UNIFORM:
            operands.append(Shared(wire.number))
        elif wire.home is Home.HOST:
            operands.append(dtype_of(wire))
        else:
            operands.append(program.arena_of(wire))
    return _Form.of(operands, [program.arena_of(wire) for wire in node.outputs])


def _slots(arena: int, heads: list[int], at: int, data: Integers) -> Span | Picks:
    how, start, count = heads[at : at + 3]
    if how == op.SPAN_VALUES:
        return Span(arena, start, count)
    return Picks(arena, data[start : start + count])


def _values(dtype: str, heads: list[int], at: int, data: Integers) -> Array:
    _, start, count = heads[at : at + 3]
    values = data[start : start + count]
    return values if dtype == "int64" else values.astype(dtype)
