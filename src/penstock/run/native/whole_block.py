"""A block that is one loop of torch calls: a CUDA graph that goes on until all rows are done.

The calls of an iteration are captured into the body of a WHILE node, for a number of rows at a
time; rows that are done keep what they have. The host launches the graph and waits. For loops that
move much data, and where there are no such graphs, torch calls leave out rows that are done.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from functools import cached_property, partial

import torch

from penstock.calls.replay import call
from penstock.ir.program import Body, Constant, Loop, Node, TorchCall, Value
from penstock.passes.row_types import count_elements
from penstock.run.batched.emit import BatchFunction
from penstock.run.capturing import refuse_while_capturing
from penstock.run.native.device_block import DeviceLoopBlock, compiled_or_none
from penstock.run.native.triton_launching import shared_words, wait
from penstock.run.native.while_nodes import WhileGraph

#: Graphs kept for one loop, and elements of all carried values up to which one is used: beyond,
#: what rows that are done compute costs more than the host saves.
MOST_GRAPHS, MOST_ELEMENTS = 4, 1 << 22


class WholeLoopBlock(DeviceLoopBlock):
    """A block with a loop of torch calls on a CUDA device in it, and nothing else."""

    def function_for(self, arguments: Sequence[torch.Tensor | int]) -> BatchFunction:
        """What to call, as function(rows, *arguments)."""
        return self._run_native

    def _run_native(self, rows: int, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        refuse_while_capturing()
        if not rows or rows * self._elements > MOST_ELEMENTS:
            return self.run_plain(rows, *arguments)
        with self._lock, torch.inference_mode(False), torch.no_grad():
            given = self.brought(arguments)
            moved = [one is not other for one, other in zip(given, arguments, strict=True)]
            kinds = zip(self.inputs, moved, strict=True)
            copied = [k for k, (x, is_moved) in enumerate(kinds) if x.kind == "row" or is_moved]
            graph = self._graph(rows, given, copied)
            if graph is not None:
                return self.returned(graph.run(given))
        return self.run_plain(rows, *arguments)

    @cached_property
    def _elements(self) -> int:
        """How many numbers a row carries."""
        return sum(map(count_elements, self.loop.body.nodes[-1].outputs))

    @cached_property
    def _lock(self) -> threading.Lock:
        return threading.Lock()

    @cached_property
    def _graphs(self) -> OrderedDict[Hashable, LoopGraph | None]:
        """Graphs by rows and by where tensors for all rows lie, the last used last."""
        return OrderedDict()

    def _graph(
        self, rows: int, given: Sequence[torch.Tensor], copied: Sequence[int]
    ) -> LoopGraph | None:
        key = (rows, *(x.data_ptr() for k, x in enumerate(given) if k not in copied))
        if key not in self._graphs:
            make = partial(LoopGraph, self, rows, given, copied)
            self._graphs[key] = compiled_or_none(make, "a WHILE node")
        self._graphs.move_to_end(key)
        while len(self._graphs) > MOST_GRAPHS:
            self._graphs.popitem(last=False)
        return self._graphs[key]


class LoopGraph:
    """A loop for a number of rows as a graph, with the memory that it works in."""

    def __init__(
        self,
        block: WholeLoopBlock,
        rows: int,
        given: Sequence[torch.Tensor],
        copied: Sequence[int],
    ) -> None:
        self.block, self.rows = block, rows
        *constants, self.node = block.loop.body.nodes
        assert isinstance(self.node.operation, Loop)
        self.loop: Loop = self.node.operation
        #: Which arguments are copied in; the others are read where they are.
        self.copied = copied
        self.arguments = [x.clone() if k in copied else x for k, x in enumerate(given)]
        self.known, self.by_row = self._first_values(constants)
        self.carried = [self._room(value) for value in self.node.outputs]
        self.running = torch.zeros(rows, dtype=torch.bool, device=block.device)
        self.trips = torch.zeros((), dtype=torch.int64, device=block.device)
        self.words = shared_words()
        self.graph = WhileGraph(self._begin, self._iterate, block.device, self.words)

    def _first_values(
        self, constants: Sequence[Node]
    ) -> tuple[dict[Value, torch.Tensor], set[Value]]:
        """What is known before the loop, and what of it rows have of their own."""
        block = self.block
        given = dict(zip(block.block.parameters, self.arguments, strict=True))
        kinds = dict(zip(block.block.parameters, block.inputs, strict=True))
        pairs = list(zip(block.loop.body.inputs, block.step.inputs, strict=True))
        known = {value: given[parameter] for value, parameter in pairs}
        inner = (*self.loop.condition.nodes, *self.loop.body.nodes)
        for node in (*constants, *inner):
            if isinstance(node.operation, Constant):
                known[node.outputs[0]] = self._number(node, node.operation)
        return known, {value for value, parameter in pairs if kinds[parameter].kind == "row"}

    def _number(self, node: Node, constant: Constant) -> torch.Tensor:
        dtype = getattr(torch, node.outputs[0].type.dtype)  # type: ignore[union-attr]
        return torch.full((), constant.value, dtype=dtype, device=self.block.device)

    def _room(self, value: Value) -> torch.Tensor:
        kind = value.type
        shape = (self.rows, *kind.shape)  # type: ignore[union-attr]
        dtype = getattr(torch, kind.dtype)  # type: ignore[union-attr]
        return torch.empty(shape, dtype=dtype, device=self.block.device)

    # ---- what is captured ------------------------------------------------------------------------

    def _begin(self) -> torch.Tensor:
        """Carried values are the initial ones; whether any row runs."""
        for room, value in zip(self.carried, self.node.inputs, strict=True):
            room.copy_(self.known[value])
        self._count(0)
        return self._ask()

    def _iterate(self) -> torch.Tensor:
        """Rows that run get new values; whether any still runs. No room is written before all
        values are there.
        """
        body = self.loop.body
        made = self._outputs(body)
        aliases = {room.untyped_storage().data_ptr() for room in self.carried}
        fresh = [x.clone() if x.untyped_storage().data_ptr() in aliases else x for x in made]
        for room, value in zip(self.carried, fresh, strict=True):
            if self.rows == 1:
                room.copy_(value)
            else:
                running = self.running.view(-1, *[1] * (room.dim() - 1))
                room.copy_(torch.where(running, value, room))
        self._count(1)
        return self._ask()

    def _count(self, more: int) -> None:
        if self.loop.maximum_iterations is not None:
            self.trips.add_(1) if more else self.trips.zero_()

    def _ask(self) -> torch.Tensor:
        """Find out which rows run; whether any does."""
        (goes_on,) = self._outputs(self.loop.condition)
        if self.loop.maximum_iterations is not None:
            goes_on = goes_on & (self.trips < self.loop.maximum_iterations)
        if self.rows == 1:
            return goes_on
        self.running.copy_(goes_on)
        return self.running.any()

    def _outputs(self, body: Body) -> list[torch.Tensor]:
        """What a body returns, [rows, ...] where rows have their own."""
        known, by_row = dict(self.known), set(self.by_row)
        known.update(zip(body.inputs, self.carried, strict=True))
        by_row.update(body.inputs)
        for node in body.nodes:
            if isinstance(node.operation, TorchCall):
                made = self._call(node, node.operation, known, by_row)
                known.update(zip(node.outputs, made, strict=True))
        return [known[value] for value in body.outputs]

    def _call(
        self,
        node: Node,
        operation: TorchCall,
        known: dict[Value, torch.Tensor],
        by_row: set[Value],
    ) -> Sequence[torch.Tensor]:
        operands = [known[value] for value in node.inputs]
        places = tuple(0 if value in by_row else None for value in node.inputs)
        if all(place is None for place in places):
            return call(operation, operands)
        by_row.update(node.outputs)
        if self.rows == 1:
            pairs = zip(operands, places, strict=True)
            single = [x if place is None else x.squeeze(0) for x, place in pairs]
            return [made.unsqueeze(0) for made in call(operation, single)]
        return tuple(torch.vmap(lambda *single: call(operation, single), places)(*operands))

    # ---- running ---------------------------------------------------------------------------------

    def run(self, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results for these arguments."""
        for place in self.copied:
            self.arguments[place].copy_(given[place])
        self.words.zero_()
        self.graph.launch()
        wait(self.block.device, self.words)
        made = dict(zip(self.block.step.outputs, self.carried, strict=True))
        return [made[value].clone() for value in self.block.block.results]
