"""From a Python function and the types of its arguments to a program.

`trace` is the one entry. It begins again with more dynamic dimensions where the function needs
them, and gives up on a dimension that cannot be dynamic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributions import Distribution

from penstock.calls.structure import Structure, unflatten
from penstock.capture.active import tracing
from penstock.capture.calls import trace_function
from penstock.capture.captures import Capture
from penstock.capture.function_mode import TracingMode
from penstock.capture.leaf_types import LeafType, StaticLeaf
from penstock.capture.restarts import Dimensions, Restart, leading
from penstock.capture.signatures import Callee, Record, Results, signature_key
from penstock.capture.traced_tensor import Facts, Origins, TracedTensor
from penstock.capture.tracer import Tracer
from penstock.capture.worlds import dtype_name
from penstock.errors import TracedValueError, report
from penstock.ir.program import Program
from penstock.ir.types import ArrayType, TensorType
from penstock.run.batched.functorch_adapter import TRACING, quiet_fakes


@dataclass(frozen=True, slots=True)
class InputLeaf:
    """An argument leaf that differs from instance to instance."""

    dtype: torch.dtype
    #: The sizes of one instance; those of dynamic dimensions are not used.
    shape: tuple[int, ...] = ()
    device: str = "cpu"


@dataclass(frozen=True, slots=True, eq=False)
class SharedLeaf:
    """A tensor argument that is the same for all instances of a call, and given at each call."""

    tensor: torch.Tensor
    name: str


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """What to trace: a function and its argument leaves."""

    callee: Callee
    #: The structure of (args, kwargs).
    structure: Structure
    #: `InputLeaf`, `SharedLeaf`, or a static value (`ps.static` or static by type).
    leaves: tuple[Any, ...]
    #: Dimensions that are dynamic from the start, as (input number, dimension).
    dynamic: Origins = frozenset()
    #: Dimensions that must stay static.
    pinned: Origins = frozenset()
    #: Dimensions with one number here share a symbol when dynamic; others have one of their own.
    groups: Mapping[tuple[int, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class TracedProgram:
    """A program and what is needed to call it."""

    program: Program
    #: One per capture of the program, in order; `fetch()` gives the current tensor.
    captures: tuple[Capture, ...]
    #: What the function returns; static leaves are not outputs of the program.
    results: Results
    #: The input dimensions that are dynamic in the program, and those that cannot be.
    dynamic: Origins
    pinned: Origins
    #: The modules within reach of the traced functions.
    modules: tuple[torch.nn.Module, ...]
    #: The text and message of each assertion that a run checks, by its line.
    assertions: dict[str, Any]

    def rebuild(self, tensors: list[Any]) -> Any:
        """The returned value of one instance from the tensors of the program's outputs."""
        remaining = iter(tensors)
        leaves = [
            leaf.value if isinstance(leaf, StaticLeaf) else next(remaining)
            for leaf in self.results.leaves
        ]
        return unflatten(self.results.structure, leaves)


def trace(request: TraceRequest) -> TracedProgram:
    """The program of the requested function."""
    with TRACING, _unvalidated_distributions():
        return _trace(request)


@contextmanager
def _unvalidated_distributions() -> Iterator[None]:
    """Distributions look at their arguments to validate them, and these have no contents yet."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


def _trace(request: TraceRequest) -> TracedProgram:
    search = _Search(request)
    while True:
        try:
            return _attempt(request, Dimensions(search.dynamic, search.pinned))
        except Restart as restart:
            search.extend(restart.dimensions)
        except Exception:
            if not search.retreat():
                raise


class _Search:
    """Which dimensions to try as dynamic next."""

    def __init__(self, request: TraceRequest) -> None:
        self._groups = request.groups
        self.dynamic = request.dynamic
        self.pinned = request.pinned
        #: What earlier restarts asked for, with what was dynamic before each.
        self._tried: list[tuple[Origins, Origins]] = []

    def extend(self, dimensions: Origins) -> None:
        """Make these dynamic too."""
        self._tried.append((dimensions, self.dynamic))
        self.dynamic |= dimensions

    def retreat(self) -> bool:
        """After a failure: try all dimensions of equal size together, then give up on the last.

        If that does not help either, what was made dynamic before it is given up, and so on.
        """
        if not self._tried:
            return False
        together = self.dynamic | self._partners()
        if together != self.dynamic:
            self.dynamic = together
        else:
            dimensions, self.dynamic = self._tried.pop()
            self.pinned |= dimensions
        return True

    def _partners(self) -> Origins:
        numbers = {self._groups.get(place, place) for place in self._tried[-1][0]}
        equal = frozenset(place for place, number in self._groups.items() if number in numbers)
        return leading(equal) - self.pinned


def _attempt(request: TraceRequest, dimensions: Dimensions) -> TracedProgram:
    tracer = Tracer(dimensions)
    tracer.mode = TracingMode(tracer)
    with quiet_fakes(), tracing(tracer), tracer.mode, torch.enable_grad():
        parameters = _parameters(tracer, request)
        record = Record(request.callee.name, parameters)
        leaves = _stand_ins(tracer, request, parameters)
        key = signature_key(request.callee, request.structure, leaves)
        trace_function(tracer, record, key, request.callee, request.structure, leaves)
    assert record.results is not None
    _refuse_arrays(request, record.results)
    return _finished(tracer, record)


def _finished(tracer: Tracer, record: Record) -> TracedProgram:
    assert record.results is not None
    entry = tracer.functions[record.name]
    others = [function for function in tracer.functions.values() if function is not entry]
    types = tuple(tracer.worlds.type_of((capture.tensor,) * 2) for capture in tracer.captures)
    names = tuple(capture.name for capture in tracer.captures)
    program = Program((entry, *others), types, names)
    return TracedProgram(
        program,
        tuple(tracer.captures),
        record.results,
        tracer.dimensions.dynamic,
        tracer.dimensions.pinned,
        tuple(tracer.owners.modules),
        tracer.assertions,
    )


def _parameters(tracer: Tracer, request: TraceRequest) -> list[LeafType]:
    """The types of the entry's inputs; dynamic dimensions of one group share a symbol."""
    symbols: dict[Any, str] = {}
    parameters = []
    inputs = [leaf for leaf in request.leaves if isinstance(leaf, InputLeaf)]
    for number, leaf in enumerate(inputs):
        shape: list[int | str] = list(leaf.shape)
        for dimension in range(len(shape)):
            place = (number, dimension)
            if place in tracer.dimensions.dynamic:
                group = request.groups.get(place, place)
                if group not in symbols:
                    symbols[group] = tracer.worlds.fresh_symbol()
                shape[dimension] = symbols[group]
        type_ = TensorType(dtype_name(leaf.dtype), tuple(shape), leaf.device)
        is_control = not (leaf.dtype.is_floating_point or leaf.dtype.is_complex)
        parameters.append(LeafType(type_, is_control))
    return parameters


def _stand_ins(tracer: Tracer, request: TraceRequest, parameters: list[LeafType]) -> list[Any]:
    """What stands for the caller's arguments: they carry the origins of dimensions."""
    stand_ins: list[Any] = []
    numbers = iter(range(len(parameters)))
    shared = 0
    with tracer.function_scope("caller") as scope:
        for leaf in request.leaves:
            if isinstance(leaf, InputLeaf):
                number = next(numbers)
                value = tracer.new_value(parameters[number].type)
                fakes = tracer.worlds.fakes(parameters[number].type)  # type: ignore[arg-type]
                origins = tuple(frozenset({(number, d)}) for d in range(len(leaf.shape)))
                is_control = parameters[number].is_control
                facts = Facts(value, fakes, scope, is_control=is_control, origins=origins)
                stand_ins.append(TracedTensor(facts))
            elif isinstance(leaf, SharedLeaf):
                tracer.bind_shared(leaf.tensor, shared, leaf.name)
                stand_ins.append(leaf.tensor)
                shared += 1
            else:
                stand_ins.append(leaf)
    return stand_ins


def _refuse_arrays(request: TraceRequest, results: Results) -> None:
    for leaf in results.leaves:
        if isinstance(leaf, LeafType) and isinstance(leaf.type, ArrayType):
            raise TracedValueError(
                report(
                    f"{request.callee.name}: a TensorArray cannot leave the program.",
                    where=str(request.callee.source),
                    facts=[("returned", str(leaf.type)), ("allowed", "tensors")],
                    todo="Return array.stack(), or the elements that are needed.",
                )
            )
