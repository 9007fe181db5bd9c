"""One block for many recorded steps: what an instance records between two reads, as one step.

The torch calls of the steps follow each other in one block, under names of their own. Gradients
flow as they do through the single steps: where a step takes a value under a detached name, or was
recorded without gradients, the block detaches it. Steps that are Python functions taken as they are
have no such form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.calls.autocast import OFF
from penstock.capture.lazy.library import library
from penstock.ir.graph import Block, Home, Node, Wire
from penstock.ir.program import Node as ProgramNode
from penstock.ir.program import Operand, TorchCall, Value
from penstock.plan.schedule import Integers, Shared
from penstock.plan.step_kinds import KeyOf, Row, StepKind, Stored
from penstock.run.step_blocks import StepBlock

#: How blocks of several steps are called.
NAME = "graph"

_DETACH = TorchCall("torch.Tensor.detach", (Operand(0),))


class GraphShape(NamedTuple):
    """What one instance has recorded, its values numbered on their own: equal shapes run alike."""

    #: The step kind of each record.
    kinds: Integers
    #: The values that records take: n for the n-th value made here, -1 - n for the n-th other one.
    operands: Integers
    #: The first random draw of each record, counted from the first of all.
    draws: Integers

    @property
    def key(self) -> tuple[bytes, ...]:
        """Equal for equal shapes."""
        return tuple(array.tobytes() for array in self)


#: Where an operand comes from: as in `GraphShape.operands`, a shared tensor, or a random key.
_Source = int | Shared | KeyOf


class _Record(NamedTuple):
    block: StepBlock
    sources: list[_Source]
    #: The number of its first result among the values made here, and how they are stored.
    first: int
    stored: Sequence[Stored]


class _Result(NamedTuple):
    value: Value
    stored: Stored
    #: Whether it may have a cotangent.
    flows: bool


def step_kind_of(shape: GraphShape, needed: npt.NDArray[np.bool_]) -> int:
    """The number of the step kind of a shape, of whose values some are needed afterwards; made
    where it is new, -1 where there is none.
    """
    key = (*shape.key, needed.tobytes())
    number = library.graphs.get(key)
    if number is None:
        number = library.graphs[key] = _add_kind(shape, np.flatnonzero(needed).tolist())
    return number


def _add_kind(shape: GraphShape, needed: Sequence[int]) -> int:
    composer = _Composer(list(_records(shape)))
    results = [composer.results[k] for k in needed]
    block = composer.block(results)
    if not _is_runnable(block):
        return -1
    stored = tuple(result.stored for result in results)
    with library.lock:
        number = library.add_block(block)
        return library.add_kind(StepKind(NAME, composer.operands(), stored, number))


def _is_runnable(block: StepBlock) -> bool:
    """Whether the calls fit together: a view may ask for strides that only single steps have."""
    try:
        shapes = block.output_shapes(())
    except Exception:  # torch may raise anything here; the single steps are the way then
        return False
    return shapes == tuple(wire.type.shape for wire in block.node.outputs)  # type: ignore[union-attr]


def _records(shape: GraphShape) -> Iterator[_Record]:
    values = iter(shape.operands.tolist())
    first = 0
    for number, draw in zip(shape.kinds.tolist(), shape.draws.tolist(), strict=True):
        kind = library.kinds[number]
        sources = [_source(operand, values, draw) for operand in kind.operands]
        yield _Record(library.block_of(number), sources, first, kind.results)
        first += len(kind.results)


def _source(operand: Row | KeyOf | Shared, values: Iterator[int], draw: int) -> _Source:
    match operand:
        case Row():
            return next(values)
        case KeyOf(draw=own):
            return KeyOf(draw + own)
    return operand


class _Composer:
    """Writes the calls of records one after the other."""

    def __init__(self, records: list[_Record]) -> None:
        self._numbers = count()
        self._source = records[0].block.node.source
        self._nodes: list[ProgramNode] = []
        #: The names of what records take, and of what they take without gradients.
        self._values: dict[_Source, Value] = {}
        self._detached: dict[_Source, Value] = {}
        #: What gradients flow through.
        self._flowing = set(_flowing(records))
        self.results: list[_Result] = []
        for record in records:
            self._write(record)

    def operands(self) -> tuple[Row | KeyOf | Shared, ...]:
        """The operands of the step kind, in the order of the block's parameters."""
        return tuple(Row() if isinstance(item, int) else item for item in self._taken())

    def block(self, results: Sequence[_Result]) -> StepBlock:
        """The block that makes these results."""
        taken = self._taken()
        parameters = tuple(self._values[item] for item in taken)
        made = tuple(result.value for result in results)
        inputs = [
            Wire(item.wire if isinstance(item, Shared) else k, value.type, _home(item), 0, 0)
            for k, (item, value) in enumerate(zip(taken, parameters, strict=True))
        ]
        outputs = [Wire(len(inputs) + k, v.type, Home.SLOT, 0, 0) for k, v in enumerate(made)]
        block = Block(NAME, tuple(self._nodes), parameters, made)
        node = Node(block, tuple(inputs), tuple(outputs), 0, 0, self._source)
        flows_in = [k for k, item in enumerate(taken) if item in self._flowing]
        return StepBlock(node, flows_in, [k for k, result in enumerate(results) if result.flows])

    def _taken(self) -> list[_Source]:
        """What comes from outside: values of rows, shared tensors, random keys."""
        rows = sorted((item for item in self._values if _is_outside(item)), reverse=True)  # type: ignore[type-var]
        shared = [item for item in self._values if isinstance(item, Shared)]
        return [*rows, *shared, *(item for item in self._values if isinstance(item, KeyOf))]

    def _write(self, record: _Record) -> None:
        block = record.block.block
        known = {
            parameter: self._operand(record, position, parameter)
            for position, parameter in enumerate(block.parameters)
        }
        for node in block.nodes:
            inputs = tuple(known[value] for value in node.inputs)
            outputs = tuple(self._value(value) for value in node.outputs)
            known.update(zip(node.outputs, outputs, strict=True))
            operation = node.operation
            if isinstance(operation, TorchCall) and not operation.autocast:
                state = record.block.autocast
                operation = replace(operation, autocast=() if state == OFF else state)
            self._nodes.append(ProgramNode(operation, inputs, outputs, node.source))
        for position, (value, stored) in enumerate(zip(block.results, record.stored, strict=True)):
            made = self._values[record.first + position] = known[value]
            flows = position in record.block.flows_out
            self.results.append(_Result(made, stored, flows))

    def _operand(self, record: _Record, position: int, parameter: Value) -> Value:
        """What a record takes; without gradients where none may pass."""
        source = record.sources[position]
        if source not in self._values:
            self._values[source] = self._value(parameter)
        if source not in self._flowing or position in record.block.flows_in:
            return self._values[source]
        if source not in self._detached:
            value = self._detached[source] = self._value(parameter)
            self._nodes.append(ProgramNode(_DETACH, (self._values[source],), (value,)))
        return self._detached[source]

    def _value(self, like: Value) -> Value:
        return Value(next(self._numbers), like.type)


def _flowing(records: Iterable[_Record]) -> Iterator[_Source]:
    """Everything that gradients flow through."""
    for record in records:
        for position, source in enumerate(record.sources):
            if position in record.block.flows_in and not _is_made(source):
                yield source
        yield from (record.first + position for position in record.block.flows_out)


def _is_made(source: _Source) -> bool:
    return isinstance(source, int) and source >= 0


def _is_outside(source: _Source) -> bool:
    return isinstance(source, int) and source < 0


def _home(source: _Source) -> Home:
    if isinstance(source, KeyOf):
        return Home.HOST
    return Home.UNIFORM if isinstance(source, Shared) else Home.SLOT
