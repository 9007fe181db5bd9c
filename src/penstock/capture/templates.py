"""The arguments of one torch call, with operands in the place of tensors.

Tensors in the arguments become operands. A traced integer in the place of a size, or as the bound
of a slice, becomes a size operand. Anything else stays in the template as it is. The template can
be filled again with the fake tensors of each world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.calls.replay import fill
from penstock.calls.slices import INDEXING
from penstock.calls.structure import flatten
from penstock.capture.size_rules import is_size_call, must_fit
from penstock.capture.traced_cuts import cut_index, find_cuts, long_enough
from penstock.capture.traced_tensor import Facts, Origins, TracedTensor, plain_size
from penstock.capture.value_numbers import representative
from penstock.capture.worlds import Fakes, SizePair
from penstock.ir.program import Operand, TorchCall
from penstock.ir.types import TensorType

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


class Template:
    """The arguments of one call with operands in the place of tensors."""

    def __init__(self, tracer: Tracer, name: str, args: tuple[Any, ...], kwargs: Any) -> None:
        self._tracer = tracer
        self._takes_sizes = is_size_call(name)
        self._must_fit = must_fit(name)
        self._is_index = name in INDEXING
        self.operands: list[TracedTensor] = []
        self.sizes: set[int] = set()
        #: Operands that select one element by position, and so have no shape of their own.
        self._positions: set[int] = set()
        self.args = tuple(self._freeze(item, number) for number, item in enumerate(args))
        self.kwargs = tuple((key, self._freeze(item, 1)) for key, item in kwargs.items())
        #: The slices with traced bounds.
        self.cuts = find_cuts(tracer, self.args[1], self.operands) if self._is_index else []

    def call(self, name: str) -> TorchCall:
        """The operation of the node."""
        return TorchCall(
            name, self.args, self.kwargs, frozenset(self.sizes), self._tracer.changed_autocast()
        )

    def arguments(self, world: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with the fakes of one world; 2 and 3 are the worlds of expected sizes."""
        operands = [self._in_world(number, world) for number in range(len(self.operands))]
        template = self.args
        if self.cuts:
            symbols = [self._tracer.worlds.sizes[cut.symbol] for cut in self.cuts]
            sizes = [self._pair_in(pair, world) for pair in symbols]
            operands[0] = long_enough(operands[0], self.cuts, sizes)
            template = (template[0], cut_index(template[1], self.cuts, sizes), *template[2:])
        args: tuple[Any, ...] = fill(template, operands)
        return args, {key: fill(item, operands) for key, item in self.kwargs}

    @property
    def is_dynamic(self) -> bool:
        """Whether the worlds differ."""
        return bool(self.cuts) or any(
            self._in_world(number, 0) is not self._in_world(number, 1)
            for number in range(len(self.operands))
        )

    @property
    def has_expected(self) -> bool:
        """Whether an operand or slice has an expected size."""
        worlds = self._tracer.worlds
        symbols = {cut.symbol for cut in self.cuts}
        for facts in (operand.traced for operand in self.operands):
            symbols.update(size for size in facts.value.type.shape if isinstance(size, str))  # type: ignore[union-attr]
            if facts.hint is not None:
                symbols.add(str(worlds.symbol(facts.hint)))
        return not worlds.expected.keys().isdisjoint(symbols)

    @property
    def origins(self) -> Origins:
        """The input dimensions that static sizes of the operands came from."""
        origins = [operand.traced.origins for operand in self.operands]
        return frozenset().union(*(places for sizes in origins for places in sizes))

    def can_expect(self, results: tuple[Any, Any]) -> bool:
        """Whether static sizes of results are those of operands, and not only expected."""
        types = [operand.traced.value.type for operand in self.operands]
        static = {1, *(size for type_ in types for size in type_.shape)}  # type: ignore[union-attr]
        first, second = (flatten(result)[0] for result in results)
        return all(
            one != other or one in static
            for left, right in zip(first, second, strict=True)
            if isinstance(left, torch.Tensor)
            for one, other in zip(left.shape, right.shape, strict=True)
        )

    def result(self, name: str, fakes: Fakes) -> Fakes:
        """What the call gives, as far as it was tried on other tensors than its own."""
        if self.cuts and name == "penstock.set_item":
            return self.operands[0].traced.fakes
        return fakes

    def _pair_in(self, pair: SizePair, world: int) -> int:
        return pair[world] if world < 2 else self._tracer.worlds.expected_pair(pair)[world - 2]

    def _freeze(self, item: Any, position: int) -> Any:
        if isinstance(item, torch.Tensor):
            return self._operand(item, position)
        if isinstance(item, tuple | list):
            return tuple(self._freeze(part, position) for part in item)
        if isinstance(item, slice):
            return slice(*(self._bound(part) for part in (item.start, item.stop, item.step)))
        return plain_size(item)

    def _operand(self, item: torch.Tensor, position: int, is_size: bool = False) -> Operand:
        traced = self._tracer.tensor(item)
        type_ = traced.traced.value.type
        assert isinstance(type_, TensorType)
        is_whole = type_.is_scalar and type_.dtype in ("int64", "int32", "int16", "int8")
        # the first argument of a method is the tensor itself, never a size
        is_self = position == 0 and not self.operands and self._takes_sizes == "after first"
        is_size = is_size or (is_whole and bool(self._takes_sizes) and not is_self)
        for number, known in enumerate(self.operands):
            if known is traced and (number in self.sizes) == is_size:
                return Operand(number)
        number = len(self.operands)
        self.operands.append(traced)
        if is_size:
            self.sizes.add(number)
            if traced.traced.hint is None:
                value = representative(self._tracer, traced.traced.value)
                traced.traced.hint = self._tracer.worlds.hint(value, is_small=self._must_fit)
        elif self._is_index and position == 1 and is_whole:
            self._positions.add(number)
        return Operand(number)

    def _bound(self, item: Any) -> Any:
        return (
            self._operand(item, 1, is_size=True)
            if isinstance(item, torch.Tensor)
            else plain_size(item)
        )

    def _in_world(self, number: int, world: int) -> Any:
        facts = self.operands[number].traced
        if number in self.sizes:
            assert facts.hint is not None
            return self._pair_in(facts.hint, world)
        if number in self._positions:
            return 0
        return facts.fakes[world] if world < 2 else self._expected_fake(facts, world)

    def _expected_fake(self, facts: Facts, world: int) -> torch.Tensor:
        worlds = self._tracer.worlds
        type_ = facts.value.type
        assert isinstance(type_, TensorType)
        sizes = [self._pair_in(worlds.pair(size), world) for size in type_.shape]
        fake = facts.fakes[world - 2]
        return fake if tuple(fake.shape) == tuple(sizes) else worlds.empty(type_, sizes)
