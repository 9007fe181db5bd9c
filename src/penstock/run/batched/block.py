"""A block for any number of rows, and how it is built.

A block has one general form for all sizes where its code depends on them by polynomials only. Where
it does not, and for dynamic sizes 0 and 1 (where broadcasting and `squeeze` mean something else),
it has one form for each choice of sizes, made at the first launch that needs it and kept in a
bounded cache. What has no batched form at all runs row by row.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import torch

from penstock.errors import PenstockWarning
from penstock.run.batched.check import find_disagreement, rows_one_by_one
from penstock.run.batched.decompose import Unbatchable
from penstock.run.batched.emit import BatchFunction, Emitted, emit
from penstock.run.batched.functorch_adapter import (
    TensorFunction,
    blamed_operations,
    operator_name,
    operators,
)
from penstock.run.batched.inputs import BlockInput, symbol_sources
from penstock.run.batched.lift import SizeDependent, lift
from penstock.run.batched.optimise import optimise
from penstock.run.batched.sizes import Point
from penstock.run.batched.steps import Step, StraightLine
from penstock.run.batched.tracing import BlockTraces, check_points, trace_points
from penstock.run.recording import building

#: Forms for particular sizes that one block keeps; the one used longest ago goes first.
MAXIMUM_FORMS = 64

#: Where code cannot be traced at the smallest sizes (a kernel wider than the sequence), larger ones
#: are tried.
_SCALES = (1, 4)


class BatchedBlock:
    """A function of N rows. Outputs may alias inputs or share memory: do not write into them."""

    def __init__(
        self,
        function: TensorFunction,
        inputs: Sequence[BlockInput],
        *,
        name: str,
        general: bool = True,
        check: bool = True,
        examples: Mapping[int, torch.Tensor] | None = None,
        warns: bool = True,
    ) -> None:
        self.function = function
        self.inputs = tuple(inputs)
        self.name = name
        #: The text of the general form; where there is none, of the form made last.
        self.source = ""
        #: Operations on whose account rows run one by one; empty where the block is batched.
        self.unbatched: tuple[str, ...] = ()
        self._check, self._warns = check, warns
        self._examples = dict(examples or {})
        self._symbols = symbol_sources(inputs)
        self._traces = BlockTraces(function, inputs)
        self._forms: OrderedDict[tuple[int, ...], BatchFunction] = OrderedDict()
        self._general: BatchFunction | None = None
        if not self._symbols:
            self._general = self._build_for({})
        elif general:
            self._general = self._build_general()
        self._traces.forget()

    def __call__(self, rows: int, *args: torch.Tensor | int) -> tuple[torch.Tensor, ...]:
        """Run all rows: row arguments are [rows, ...], and so is every output."""
        if not self._symbols and self._general is not None:
            return self._general(rows, *args)
        return self.form_for(args)(rows, *args)

    def form_for(self, args: Sequence[torch.Tensor | int]) -> BatchFunction:
        """The function that runs arguments of these sizes."""
        sizes = tuple([symbol.read(args) for symbol in self._symbols])
        if self._general is not None and min(sizes, default=2) > 1:
            return self._general
        return self._form_for(sizes)

    @property
    def is_general(self) -> bool:
        """Whether one form serves all sizes from 2 on."""
        return self._general is not None

    def _form_for(self, sizes: tuple[int, ...]) -> BatchFunction:
        form = self._forms.get(sizes)
        if form is None:
            names = [symbol.name for symbol in self._symbols]
            form = self._build_for(dict(zip(names, sizes, strict=True)))
            self._traces.forget()
            self._forms[sizes] = form
            if len(self._forms) > MAXIMUM_FORMS:
                self._forms.popitem(last=False)
        self._forms.move_to_end(sizes)
        return form

    @building()
    def _build_general(self) -> BatchFunction | None:
        """The form for all sizes, or None where each choice of sizes needs its own."""
        names = [symbol.name for symbol in self._symbols]
        for scale in _SCALES:
            points = trace_points(names, scale=scale, verify=True)
            try:
                return self._build(points, points, check_points(names, scale=scale))
            except SizeDependent:
                return None
            except Unbatchable as problem:
                if problem.operations:
                    return self._row_loop(problem)
        return None

    @building()
    def _build_for(self, fixed: Point) -> BatchFunction:
        """The form for one choice of dynamic sizes."""
        free = trace_points((), scale=1, verify=not self._check)
        checked = [{**point, **fixed} for point in check_points((), scale=1)]
        try:
            return self._build(free, [{**point, **fixed} for point in free], checked)
        except Unbatchable as problem:
            return self._row_loop(problem)

    def _build(
        self, free: Sequence[Point], points: Sequence[Point], checked: Sequence[Point]
    ) -> BatchFunction:
        code = lift(self._graphs(points), free)
        problem = ""
        for overloads in (False, True):
            emitted = self._emit(code, overloads=overloads, symbols=len(free[0]) > 1)
            disagreement = self._disagreement(emitted, checked) if self._check else None
            if disagreement is None:
                self._show(emitted.source)
                return emitted.compile()
            problem = disagreement
        graph = self._traces.instance_at(points[0])
        names = list(dict.fromkeys(map(operator_name, operators(graph))))
        if self._symbols and len(free[0]) > 1:
            raise SizeDependent(problem)
        raise Unbatchable(f"batched and single results differ {problem}", names)

    def _graphs(self, points: Sequence[Point]) -> list[torch.fx.GraphModule]:
        try:
            return [self._traces.batched_at(point) for point in points]
        except Unbatchable:
            raise
        except Exception as error:  # the user's code, or torch inside it, may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise Unbatchable(reason, blamed_operations(error)) from error

    def _emit(self, code: StraightLine, *, overloads: bool, symbols: bool) -> Emitted:
        if not overloads:
            code = optimise(code)
        steps = iter(code.inputs)
        parameters: list[Step | None] = [
            None if spec.kind == "size" else next(steps) for spec in self.inputs
        ]
        sources = self._symbols if symbols else ()
        return emit(
            code, name=self.name, parameters=parameters, symbols=sources, overloads=overloads
        )

    def _disagreement(self, emitted: Emitted, points: Sequence[Point]) -> str | None:
        batched = emitted.compile(torch.device("cpu"))
        return find_disagreement(self.function, batched, self.inputs, points, self._examples)

    def _show(self, source: str) -> None:
        if self._general is None:
            self.source = source

    def _row_loop(self, problem: Unbatchable) -> BatchFunction:
        self._show(f"# row by row: {problem}\n")
        waiting = [problem]
        if problem.operations or not self._symbols:
            self._tell(waiting.pop())

        def loop(rows: int, *args: torch.Tensor | int) -> tuple[torch.Tensor, ...]:
            results = rows_one_by_one(self.function, self.inputs, rows, args)
            while waiting:  # what fails for single rows too is wrong, not slow
                self._tell(waiting.pop())
            return results

        return loop

    def _tell(self, problem: Unbatchable) -> None:
        """Note, and warn, on whose account rows run one by one."""
        operations = problem.operations or ("the whole block",)
        news = [operation for operation in operations if operation not in self.unbatched]
        self.unbatched += tuple(news)
        if news and self._warns:
            what = f"block {self.name!r} runs row by row: {', '.join(news)} cannot be batched"
            warnings.warn(f"{what} ({problem})", PenstockWarning, stacklevel=2)


def build_batched(
    function: TensorFunction,
    inputs: Sequence[BlockInput],
    *,
    name: str,
    general: bool = True,
    check: bool = True,
    examples: Mapping[int, torch.Tensor] | None = None,
    warns: bool = True,
) -> BatchedBlock:
    """The batched form of a straight-line function of one instance.

    `function` takes tensors and sizes in the order of `inputs` and returns a tuple of tensors.
    Without `general`, each choice of dynamic sizes has a form of its own. With `check`, the batched
    form is compared with row-by-row execution; `examples` gives real tensors for uniform inputs by
    position, where made-up ones would say nothing; without `warns`, a form that runs row by row is
    only noted in `unbatched`.
    """
    return BatchedBlock(
        function,
        inputs,
        name=name,
        general=general,
        check=check,
        examples=examples,
        warns=warns,
    )
