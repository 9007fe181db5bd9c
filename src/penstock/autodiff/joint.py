"""The forward and backward halves of a block, from one joint trace.

The batched form of a block is traced together with its vjp; what the backward half reads of the
forward half is saved. Uniform operands are read again, not saved, and what depends on them alone is
computed again; a form that saves rows of operands only computes everything else again too. A
backward half exists for each set of results that have cotangents: a missing cotangent is not a zero
one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from penstock.autodiff.contract import Contraction, cut
from penstock.autodiff.halves import Halves, named_once
from penstock.autodiff.zeros import may_be_zero
from penstock.run.batched.emit import BatchFunction, emit
from penstock.run.batched.functorch_adapter import TRACING, fake_mode, fake_tensors, trace_function
from penstock.run.batched.inputs import BlockInput, SymbolSource
from penstock.run.batched.lift import lift
from penstock.run.batched.optimise import optimise
from penstock.run.batched.sizes import ROWS, Point
from penstock.run.batched.steps import Step, StraightLine
from penstock.run.batched.tracing import trace_points
from penstock.run.launch_graphs import LaunchGraphs

#: The results of a block that have cotangents, by position.
Pattern = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Backward:
    """The backward half for one pattern of cotangents."""

    #: Called as function(rows, *saved, *uniforms, *cotangents, *sizes).
    function: BatchFunction
    #: Positions among the saved values, and the positions of the uniform operands it reads.
    saved: tuple[int, ...]
    uniforms: tuple[int, ...]
    #: For each differentiated operand where its gradient is among the results, or how it follows
    #: from factors that
    #: are; None: no cotangent reaches it.
    gradients: tuple[int | Contraction | None, ...]
    source: str
    #: For each differentiated operand where among the results it says which rows have a gradient,
    #: if that depends on values; empty where it never does.
    reached: tuple[int | None, ...] = ()
    #: The code of the function, and its inputs that are cotangents.
    code: StraightLine | None = None
    cotangents: tuple[Step, ...] = ()

    @property
    def given(self) -> int:
        """How many results it has."""
        return 0 if self.code is None else len(self.code.outputs)


class TrainingForm:
    """A block that can be differentiated in some of its operands."""

    def __init__(
        self,
        batched: Callable[..., tuple[torch.Tensor, ...]],
        inputs: Sequence[BlockInput],
        operands: Sequence[int],
        results: Sequence[int],
        name: str,
        fixed: Point | None = None,
        *,
        saves_rows: bool = False,
    ) -> None:
        #: Whether nothing is saved but rows of operands.
        self.saves_rows = saves_rows
        self.batched = batched
        self.inputs = tuple(inputs)
        self.operands = tuple(operands)
        #: The results that may have cotangents.
        self.results = tuple(results)
        self.name = name
        self.fixed = fixed
        self.symbols = [] if fixed is not None else symbol_names(inputs)
        self.backwards: dict[Pattern, Backward] = {}
        #: The code of halves that are compiled, made and looked up by `fused_half`.
        self.fused_halves: dict[object, Any] = {}
        self.known_zeros: dict[tuple[Pattern, Pattern], bool] = {}
        #: Forward halves that give some of the saved values only.
        self.giving: dict[tuple[int, ...], BatchFunction] = {}
        #: Its halves as CUDA graphs: the forward one, and backward ones by pattern and layout.
        self.graphs: dict[Hashable, LaunchGraphs] = {}
        self._build()

    # ---- tracing ---------------------------------------------------------------------------------

    def _joint(self, pattern: Pattern) -> StraightLine:
        points = trace_points(self.symbols, scale=1, verify=bool(self.symbols))
        graphs = [self._trace({**point, **(self.fixed or {})}, pattern) for point in points]
        return named_once(lift(graphs, points)).live()

    def _trace(self, point: Point, pattern: Pattern) -> torch.fx.GraphModule:
        mode = fake_mode()
        tensors = [spec for spec in self.inputs if spec.kind != "size"]
        shapes = [
            (spec.sizes_at(point, batched=True), spec.torch_dtype, spec.device) for spec in tensors
        ]
        primals = fake_tensors(mode, shapes)
        with TRACING, mode:
            outputs = self._forward(point, primals)
        kinds = [
            (tuple(outputs[k].shape), outputs[k].dtype, str(outputs[k].device)) for k in pattern
        ]
        cotangents = fake_tensors(mode, kinds)

        def joint(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
            given, tangents = arguments[: len(primals)], arguments[len(primals) :]
            return self._differentiate(point, given, tangents, pattern)

        return trace_function(joint, [*primals, *cotangents], mode)

    def _forward(self, point: Point, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        remaining = iter(tensors)
        arguments = [
            point[str(spec.symbol)] if spec.kind == "size" else next(remaining)
            for spec in self.inputs
        ]
        return self.batched(point[ROWS], *arguments)

    def _differentiate(
        self,
        point: Point,
        primals: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor],
        pattern: Pattern,
    ) -> tuple[torch.Tensor, ...]:
        places = [k for k, spec in enumerate(self.inputs) if spec.kind != "size"]
        chosen = [places.index(operand) for operand in self.operands]

        def forward(
            *varied: torch.Tensor,
        ) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
            full = list(primals)
            for place, value in zip(chosen, varied, strict=True):
                full[place] = value
            outputs = self._forward(point, full)
            return tuple(outputs[k] for k in pattern), tuple(outputs)

        made: Any = torch.func.vjp(forward, *(primals[k] for k in chosen), has_aux=True)
        _, vjp, outputs = made
        return (*outputs, *vjp(tuple(tangents)))

    # ---- splitting -------------------------------------------------------------------------------

    def _build(self) -> None:
        code = self._joint(self.results)
        count = len(code.outputs) - len(self.operands)
        primals = len(code.inputs) - len(self.results)
        halves = self._halves(code, primals)
        self.saved = [halves.describe(step) for step in halves.saved]
        #: Bytes that are saved for each row, as far as that is known.
        self.row_bytes = sum(saved.row_bytes for saved in self.saved)
        outputs = (*code.outputs[:count], *halves.saved)
        steps = tuple(step for step in code.steps if step not in halves.is_backward)
        forward = optimise(StraightLine(code.inputs[:primals], steps, outputs).live())
        self.output_count = count
        self.forward, self.forward_source = self._emit(forward, forward.inputs, "forward")
        self.backwards[self.results] = self._backward(code, halves, self.results)

    def _halves(self, code: StraightLine, primals: int) -> Halves:
        tensors = [spec for spec in self.inputs if spec.kind != "size"]
        uniform = {k for k, spec in enumerate(tensors) if spec.kind == "uniform"}
        return Halves(code, primals, uniform, saves_rows=self.saves_rows)

    def saved_operand(self, position: int) -> int:
        """The operand that a saved value is, where only operands are saved."""
        key: Any = self.saved[position].key
        return self._operand_of(key[1])

    def forward_giving(self, chosen: tuple[int, ...]) -> BatchFunction:
        """The forward half without all saved values but these."""
        if chosen not in self.giving:
            count, forward = self.output_count, self.forward

            def function(rows: int, *arguments: Any) -> tuple[torch.Tensor, ...]:
                made = forward(rows, *arguments)
                return (*made[:count], *(made[count + k] for k in chosen))

            self.giving[chosen] = function
        return self.giving[chosen]

    def graphs_of(self, function: BatchFunction, *key: Hashable) -> LaunchGraphs:
        """A half as CUDA graphs; several where it is made of a function in several ways."""
        if key not in self.graphs:
            self.graphs[key] = LaunchGraphs(function)
        return self.graphs[key]

    def backward(self, pattern: Pattern) -> Backward:
        """The backward half for these results having cotangents."""
        if pattern not in self.backwards:
            code = self._joint(pattern)
            primals = len(code.inputs) - len(pattern)
            halves = self._halves(code, primals)
            self.backwards[pattern] = self._backward(code, halves, pattern)
        return self.backwards[pattern]

    def _backward(self, code: StraightLine, halves: Halves, pattern: Pattern) -> Backward:
        known = {saved.key: position for position, saved in enumerate(self.saved)}
        keys = [halves.keys[step] for step in halves.saved]
        missing = [key for key in keys if key not in known]
        assert not missing, f"{self.name}: {pattern} reads more of the forward half than it saves"
        gradients = code.outputs[len(code.outputs) - len(self.operands) :]
        distinct = tuple(dict.fromkeys(step for step in gradients if step in halves.is_backward))
        uniforms = [step for k, step in enumerate(code.inputs) if k in halves.uniforms]
        tangents = code.inputs[halves.primals :]
        inputs = (*halves.saved, *uniforms, *tangents)
        kept = halves.is_backward | halves.is_uniform | halves.again
        steps = tuple(step for step in code.steps if step in kept)
        backward = optimise(StraightLine(inputs, steps, distinct).live())
        made = dict(zip(distinct, backward.outputs, strict=True))
        is_uniform = [self.inputs[operand].kind == "uniform" for operand in self.operands]
        backward, places = cut(backward, [made.get(step) for step in gradients], is_uniform)
        backward, read = _without_unread(backward, len(halves.saved), len(uniforms))
        operands = [self._operand_of(k) for k in sorted(halves.uniforms)]
        function, source = self._emit(backward, backward.inputs, "backward")
        return Backward(
            function,
            tuple(known[key] for key in keys),
            tuple(operands[k] for k in read),
            tuple(places),
            source,
            code=backward,
            cotangents=tangents,
        )

    def takes_zeros(self, pattern: Pattern, held: Pattern) -> bool:
        """Whether rows in which only the results `held` have cotangents may go with those of a
        wider pattern.
        """
        if (pattern, held) not in self.known_zeros:
            backward = self.backward(pattern)
            assert backward.code is not None
            given = dict(zip(pattern, backward.cotangents, strict=True))
            missing = [step for result, step in given.items() if result not in held]
            present = [given[result] for result in held]
            self.known_zeros[pattern, held] = may_be_zero(backward.code, missing, present)
        return self.known_zeros[pattern, held]

    def _operand_of(self, place: int) -> int:
        tensors = [k for k, spec in enumerate(self.inputs) if spec.kind != "size"]
        return tensors[place]

    def _emit(
        self, code: StraightLine, inputs: Sequence[Step], half: str
    ) -> tuple[BatchFunction, str]:
        parameters: list[Step | None] = [*inputs, *(None for _ in self.symbols)]
        sources = [SymbolSource(name, len(inputs) + k, None) for k, name in enumerate(self.symbols)]
        emitted = emit(code, name=f"{self.name}.{half}", parameters=parameters, symbols=sources)
        return emitted.compile(), emitted.source

    def sizes(self, arguments: Sequence[torch.Tensor | int]) -> tuple[int, ...]:
        """The dynamic sizes of a launch, in the order in which the halves take them."""
        if not self.symbols:
            return ()
        found = named_sizes(self.inputs, arguments)
        return tuple(found[name] for name in self.symbols)


def _without_unread(code: StraightLine, first: int, count: int) -> tuple[StraightLine, list[int]]:
    """The code without the unread of `count` inputs from `first` on, and which of them it reads."""
    inputs = code.inputs[first : first + count]
    read = [k for k, step in enumerate(inputs) if code.uses[step]]
    kept = (*code.inputs[:first], *(inputs[k] for k in read), *code.inputs[first + count :])
    return StraightLine(kept, code.steps, code.outputs), read


def named_sizes(
    inputs: Sequence[BlockInput], arguments: Sequence[torch.Tensor | int]
) -> dict[str, int]:
    """The value of every symbol in a launch."""
    found: dict[str, int] = {}
    for spec, argument in zip(inputs, arguments, strict=True):
        if isinstance(argument, int):
            found[str(spec.symbol)] = argument
        elif any(isinstance(name, str) for name in spec.shape):
            shape = argument.shape[1:] if spec.kind == "row" else argument.shape
            sized = zip(spec.shape, shape)
            found.update({name: size for name, size in sized if isinstance(name, str)})
    return found


def symbol_names(inputs: Sequence[BlockInput]) -> list[str]:
    """The names of all dynamic sizes, once each."""
    names: dict[str, None] = {}
    for spec in inputs:
        if spec.symbol is not None:
            names[spec.symbol] = None
        names.update(dict.fromkeys(size for size in spec.shape if isinstance(size, str)))
    return list(names)
