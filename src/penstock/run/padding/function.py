"""A block's function for padded operands: what it computes, for which lengths, and why not.

The function takes what the block takes, dynamic dimensions padded with zeros, and behind that the
instance's own length for each symbol. Sizes that differ by a fixed number in every row (a sequence
and the same without its last element) may be tied: the symbol of the largest then stands for all,
and operands with a tied one are padded as if they had it. The function is made of the straight line
that the block is at every size, by the table of rules; a block that is no such line, or has an
operation without a rule, has no padded form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from penstock.run.batched.functorch_adapter import TensorFunction
from penstock.run.batched.inputs import BlockInput, symbol_sources
from penstock.run.batched.lift import lift
from penstock.run.batched.sizes import ROWS, Point, Polynomial, Size, at
from penstock.run.batched.steps import StraightLine
from penstock.run.batched.tracing import BlockTraces, trace_points
from penstock.run.padding.ragged import Frame, Ragged, Unpaddable, is_padded
from penstock.run.padding.replay import infinite_constants, replay_padded

#: For a symbol another one, and what to add to that: nothing or less.
Ties = Mapping[str, tuple[str, int]]
NO_TIES: Ties = {}

#: Where code cannot be traced at the smallest sizes, larger ones are tried.
_SCALES = (1, 4)

#: Sizes that are tried for the least that the padded form serves.
_LEAST = (0, 1, 2, 4, 8)


class PaddedFunction:
    """What a block computes for one instance whose dynamic dimensions are padded."""

    def __init__(
        self, function: TensorFunction, inputs: Sequence[BlockInput], ties: Ties = NO_TIES
    ) -> None:
        self._inside = tuple(inputs)
        self.inputs = tuple(_with_roots(spec, ties) for spec in inputs)
        self.ties = ties
        names = [source.name for source in symbol_sources(inputs)]
        #: Those that are tied to no other.
        self.symbols = tuple(name for name in names if name not in ties)
        traces = BlockTraces(function, inputs)
        self.code, self.points = self._lift(traces)
        self._infinite = infinite_constants(self.code)
        #: For each symbol the least size for which the form is right.
        self.least = self._find_least(traces)
        #: The size of the leading dimension of each result, if that is dynamic.
        self.lengths = [self._length_of(result) for result in self._try(self._frame())]

    def __call__(self, *arguments: torch.Tensor | int) -> tuple[torch.Tensor, ...]:
        """The results, finite numbers in their padding; lengths come last."""
        given = arguments[: len(self.inputs)]
        lengths = dict(zip(self.symbols, arguments[len(self.inputs) :], strict=True))
        frame = Frame(self._sizes(given), lengths)  # type: ignore[arg-type]
        return tuple(frame.finite(result).tensor for result in self._run(frame, given))

    def cut(self, arguments: Sequence[torch.Tensor | int]) -> list[torch.Tensor | int]:
        """The arguments of one instance without padding and lengths."""
        own = zip(self.symbols, map(int, arguments[len(self.inputs) :]), strict=True)
        lengths = self._full(dict(own))
        found: list[torch.Tensor | int] = []
        for spec, argument in zip(self._inside, arguments):
            if isinstance(argument, int):
                found.append(lengths[str(spec.symbol)])
                continue
            for dim, name in enumerate(spec.shape):
                if isinstance(name, str):
                    argument = argument.narrow(dim, 0, lengths[name])
            found.append(argument)
        return found

    def _run(self, frame: Frame, given: Sequence[torch.Tensor | int]) -> list[Ragged]:
        tensors = [
            self._narrowed(item, spec, frame.sizes)
            for item, spec in zip(given, self._inside, strict=True)
            if isinstance(item, torch.Tensor)
        ]
        return replay_padded(self.code, frame, tensors, self._infinite)

    def _narrowed(self, value: torch.Tensor, spec: BlockInput, sizes: Point) -> torch.Tensor:
        """An operand without the room that only the symbol it is tied to needs."""
        for dim, name in enumerate(spec.shape):
            if name in self.ties:
                root, more = self.ties[str(name)]
                value = value.narrow(dim, 0, sizes[root] + more)
        return value

    def _sizes(self, given: Sequence[torch.Tensor | int]) -> Point:
        """The padded sizes."""
        found: dict[str, int] = {}
        for spec, argument in zip(self.inputs, given, strict=True):
            if isinstance(argument, int):
                found[str(spec.symbol)] = argument
            else:
                sized = zip(spec.shape, argument.shape, strict=True)
                found.update({name: size for name, size in sized if isinstance(name, str)})
        return found

    def _lift(self, traces: BlockTraces) -> tuple[StraightLine, list[Point]]:
        """The block as one straight line, and the sizes at which it was traced."""
        problem: Exception | None = None
        for scale in _SCALES:
            traced = trace_points(self.symbols, scale=scale, verify=True)
            named = [{k: n for k, n in point.items() if k != ROWS} for point in traced]
            points: list[Point] = [named[0], *named[2:]]  # the second differs in rows alone
            try:
                return lift([self._trace(traces, point) for point in points], points), points
            except Exception as error:  # torch inside a trace may raise anything
                problem = problem or error
        raise Unpaddable("the block", f"depends on its sizes: {problem}")

    def _trace(self, traces: BlockTraces, point: Point) -> torch.fx.GraphModule:
        return traces.instance_at(self._full(point))

    def _full(self, point: Point) -> Point:
        """The sizes of all symbols, from those that are tied to none."""
        return {**point, **{name: point[root] + n for name, (root, n) in self.ties.items()}}

    def _find_least(self, traces: BlockTraces) -> dict[str, int]:
        least = {}
        for name in self.symbols:
            tried = (size for size in _LEAST if self._is_same_at(traces, {name: size}))
            least[name] = next(tried, self.points[0][name])
        return self._with_entries(least)

    def _is_same_at(self, traces: BlockTraces, sizes: Point) -> bool:
        """Whether the block is the same straight line at other sizes too."""
        point = {**self.points[0], **sizes}
        points = [*self.points, point]
        try:
            line = lift([self._trace(traces, each) for each in points], points)
        except Exception:
            return False
        return [str(step) for step in line.steps] == [str(step) for step in self.code.steps]

    def _with_entries(self, least: Mapping[str, int]) -> dict[str, int]:
        """Sizes from which on no dimension is empty that must have entries."""
        frame = self._frame()
        self._try(frame)
        found = dict(least)
        while any(at(size, found) < 1 for size in frame.needed):
            found = {
                name: size
                + any(name in names for needed in frame.needed for names, _ in needed.terms)
                for name, size in found.items()
            }
        return found

    def _try(self, frame: Frame) -> list[Ragged]:
        """What the rules say, by a run without contents."""
        try:
            return self._run(frame, self._made_up())
        except Unpaddable:
            raise
        except Exception as error:  # zeros need not make sense as operands
            raise Unpaddable("the block", f"cannot be tried: {error}") from error

    def _frame(self) -> Frame:
        point = self.points[0]
        lengths = {name: torch.tensor(point[name], device=self.device) for name in self.symbols}
        return Frame(point, lengths)

    @property
    def device(self) -> str:
        """Where the block computes: host values may be among its operands."""
        devices = [spec.device for spec in self.inputs if spec.kind != "size"]
        return next((device for device in devices if device != "cpu"), "cpu")

    def _made_up(self) -> list[torch.Tensor | int]:
        """Arguments without contents, to see what the rules say."""
        point = self._full(self.points[0])
        return [
            point[str(spec.symbol)]
            if spec.kind == "size"
            else torch.zeros(
                spec.sizes_at(point, batched=False), dtype=spec.torch_dtype, device=spec.device
            )
            for spec in self.inputs
        ]

    def _length_of(self, result: Ragged) -> Polynomial | None:
        if not result.padded:
            return None
        size: Size = result.dims[0][0] if result.dims[0] else 1
        rest = [*result.dims[0][1:], *(f for factors in result.dims[1:] for f in factors)]
        if not isinstance(size, Polynomial) or is_padded(tuple(rest)):
            raise Unpaddable("a result", "has a dynamic dimension that is not its first")
        for factor in result.dims[0][1:]:
            raise Unpaddable("a result", f"has {factor} entries for each of a dynamic dimension")
        return size


def _with_roots(spec: BlockInput, ties: Ties) -> BlockInput:
    """An input whose tied sizes are those that they are tied to."""

    def root(name: int | str | None) -> Any:
        return ties[name][0] if isinstance(name, str) and name in ties else name

    return replace(spec, shape=tuple(map(root, spec.shape)), symbol=root(spec.symbol))
