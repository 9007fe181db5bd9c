"""The padded form of a block, made ready to run as any block is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import torch

from penstock.ir.program import Value
from penstock.ir.types import TensorType
from penstock.plan.padding import Padding
from penstock.plan.schedule import Hosted, Integers, Launch
from penstock.run.batched import BatchedBlock, BlockInput, build_batched
from penstock.run.batched.sizes import at
from penstock.run.blocks import Failure, RunnableBlock
from penstock.run.padding.function import NO_TIES, PaddedFunction, Ties
from penstock.run.padding.ragged import Unpaddable
from penstock.run.recording import building

#: Ways to tie sizes that are tried for a block, at most.
MOST_TRIED = 4

log = logging.getLogger("penstock")


class PaddedBlock(RunnableBlock):
    """A block for rows of different sizes: its operands, padded, and each row's own lengths."""

    def __init__(self, original: RunnableBlock, number: int) -> None:
        super().__init__(original.node, original.autocast)
        self.original = original
        #: Its number among the blocks of the program.
        self.number = number
        self._made: PaddedFunction | None = None
        #: The ties for which the block has no padded form.
        self._tried: set[object] = set()

    def plain_function(self) -> None:
        """There is none: rows have lengths of their own."""

    def padding(self, sizes: Mapping[int, Integers]) -> Padding | None:
        """What the planner needs to know; None where the block cannot be padded.

        `sizes` are those of the rows at hand, by operand: if the block makes no sense where sizes
        are chosen freely, those that differ by a fixed number are tied.
        """
        if self._made is None:
            ties = self._find_ties(sizes)
            for tried in (NO_TIES, ties) if ties else (NO_TIES,):
                self._try(tried)
        return None if self._made is None else self._padding

    @cached_property
    def _padding(self) -> Padding:
        made = self._function
        return Padding(
            self.number, self._operands_of(), made.ties, made.least, self._result_lengths
        )

    @property
    def ties(self) -> Ties | None:
        """How sizes are tied in the padded form; None while there is none."""
        return None if self._made is None else self._made.ties

    def has_form(self, ties: Ties) -> bool:
        """Whether the padded form, made now if there is none, ties sizes like this."""
        self._try(ties)
        return self.ties == ties

    def _try(self, ties: Ties) -> None:
        """Make the padded function, unless it has been tried in vain."""
        key = tuple(ties.items())
        if self._made is not None or key in self._tried or len(self._tried) == MOST_TRIED:
            return
        try:
            with building():
                _require_sequences(self.original.inputs)
                function, inputs = self.original.function, self.original.inputs
                made = PaddedFunction(function, inputs, ties)
                _require_lengths(self.original, made)
                self._made, self.original.obstacle = made, ""
        except Unpaddable as problem:
            self._tried.add(key)
            self.original.obstacle = self.original.obstacle or str(problem)
            log.debug("block %s runs once per size: %s", self.name, problem)

    def _find_ties(self, sizes: Mapping[int, Integers]) -> Ties:
        """The symbols whose sizes differ from another's by one number in all rows."""
        found: dict[str, tuple[str, int]] = {}
        first = {name: sizes[places[0]] for name, places in self._operands_of().items()}
        largest_first = sorted(first, key=lambda name: -int(first[name][0]))
        for place, name in enumerate(largest_first):
            for root in largest_first[:place]:
                more = first[name] - first[root]
                if root not in found and (more == more[0]).all():
                    found[name] = root, int(more[0])
                    break
        return found

    def _operands_of(self) -> dict[str, tuple[int, ...]]:
        """The operands that have each symbol."""
        operands: dict[str, list[int]] = {}
        for position, spec in enumerate(self.original.inputs):
            for name in (spec.symbol, *spec.shape):
                if isinstance(name, str):
                    operands.setdefault(name, []).append(position)
        return {name: tuple(found) for name, found in operands.items()}

    @property
    def _function(self) -> PaddedFunction:
        assert self._made is not None, "the planner knows the padded form"
        return self._made

    def _result_lengths(self, sizes: Mapping[str, Integers]) -> Sequence[Integers | None]:
        lengths = self._function.lengths
        return [None if size is None else at(size, sizes) for size in lengths]  # type: ignore[arg-type,misc]

    def padding_share(self, launch: Launch, shapes: Sequence[tuple[int, ...]]) -> float | None:
        """How much of the sequences of a launch, whose operands have these shapes, is padding."""
        made = self._function
        own = [item.values for item in launch.operands if isinstance(item, Hosted)]
        lengths = dict(zip(made.symbols, own[len(own) - len(made.symbols) :], strict=True))
        valid = whole = 0
        for spec, shape in zip(made.inputs, shapes):
            if spec.kind == "row" and spec.shape and spec.shape[0] in lengths:
                valid += int(lengths[str(spec.shape[0])].sum())
                whole += shape[0] * shape[1]
        return 1 - valid / whole if whole else 0.0

    def function(self, *arguments: torch.Tensor | int) -> tuple[torch.Tensor, ...]:
        """What the block computes for one instance, padded."""
        return self._function(*arguments)

    def values(self, arguments: Sequence[torch.Tensor | int]) -> dict[Value, torch.Tensor | int]:
        """All values of the block for one instance, without padding."""
        return self.original.values(self._function.cut(arguments))

    def failure(self, arguments: Sequence[torch.Tensor | int]) -> Failure | None:
        """Where the block fails for one instance, and how; None where it does not."""
        return self.original.failure(self._function.cut(arguments))

    @cached_property
    def inputs(self) -> list[BlockInput]:
        """The block's parameters, and the lengths."""
        made = self._function
        length = BlockInput("row", "int64", (), None, made.device)
        return [*made.inputs, *(length for _ in made.symbols)]

    def _built(
        self, function: Callable[..., tuple[torch.Tensor, ...]], inputs: Sequence[BlockInput]
    ) -> BatchedBlock:
        return build_batched(function, inputs, name=self.name, warns=self.warns)


def _require_lengths(original: RunnableBlock, made: PaddedFunction) -> None:
    """A result that may have any length must have one that follows from those of the operands."""
    for wire, length in zip(original.node.outputs, made.lengths, strict=True):
        if isinstance(wire.type, TensorType) and wire.type.is_dynamic and length is None:
            raise Unpaddable("a result", "is a sequence of fixed length")


def _require_sequences(inputs: Sequence[BlockInput]) -> None:
    """Only sequences, whose first dimension alone is dynamic, have padded copies."""
    for spec in inputs:
        if any(isinstance(size, str) for size in spec.shape[1:]):
            raise Unpaddable("an operand", "has a dynamic dimension that is not its first")
