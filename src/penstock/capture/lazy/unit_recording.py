"""Records calls of modules, functions and methods as one step, where they can be units.

A call is looked up twice: the unit by its key, and of that unit the step for these kinds of
operands. What is not a unit runs as it is, and its own torch calls are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from penstock.calls.structure import flatten
from penstock.capture.lazy.call_keys import CallKey, Unhashable
from penstock.capture.lazy.kinds import LazyKind, intern
from penstock.capture.lazy.library import Key, Leaf, Step, Uniform, library
from penstock.capture.lazy.module_changes import changes
from penstock.capture.lazy.step_blocks import add_launch
from penstock.capture.lazy.tensor import LazyTensor
from penstock.capture.lazy.unit_report import UnitReport
from penstock.capture.lazy.unit_traces import UnitTraces, add_traces, traces_of
from penstock.capture.lazy.units import Output, Refusal, Unit, describe_call

if TYPE_CHECKING:
    from penstock.capture.lazy.scope import Scope

_is_grad_enabled = torch.is_grad_enabled
_is_any_autocast_enabled = torch._C._is_any_autocast_enabled

_SIMPLE = frozenset(
    [int, bool, float, complex, str, type(None), torch.dtype, torch.device, torch.Size, slice]
)


#: Records a call in another way: whether it did, and what the call gives then.
Otherwise = Callable[[], tuple[bool, Any]]


class UnitHook:
    """Asked about every call that could be one step of a scope."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.report = UnitReport()
        #: Units and their steps by call and kinds of operands, while the count of changes stands.
        self._quick: dict[Hashable, tuple[Unit, Step]] = {}
        self._count = -1

    def on_call(
        self,
        original: Callable[..., Any],
        owner: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[bool, Any]:
        """Record the call as one step, if it is a unit."""
        scope = self._scope
        if not scope.is_recording or scope.granularity == "op":
            return False, None
        if self._count == changes.count and not kwargs and not _is_any_autocast_enabled():
            parts: list[Any] = [original, id(owner)]
            values: list[int] = []
            for item in args:
                if type(item) is not LazyTensor or item._scope is not scope:
                    break
                parts.append(item._kind)
                values.append(item._value)
            else:
                parts.append(_is_grad_enabled())
                known = self._quick.get(tuple(parts))
                if known is not None:
                    return True, self._add_known(known[0], known[1], args, values)
        if not _has_tensors_only(args) or (kwargs and not _has_tensors_only(kwargs.values())):
            return False, None
        return self.record(traces_of(original, owner), original, owner, args, kwargs)

    def on_function(
        self,
        original: Any,
        owner: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        otherwise: Otherwise,
    ) -> tuple[bool, Any]:
        """Record the call of a `ps.function`, whose arguments are tensors, as one step;
        `otherwise` is asked about one that is no unit.
        """
        if self._scope.granularity == "op":
            return False, None
        traces = traces_of(original, owner)
        if not traces.is_trusted:
            traces = add_traces(original, owner, is_trusted=True, returns_numbers=False)
        return self.record(traces, original, owner, args, kwargs, otherwise)

    def record(
        self,
        traces: UnitTraces,
        original: Callable[..., Any],
        owner: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        otherwise: Otherwise | None = None,
    ) -> tuple[bool, Any]:
        """Record a call whose units are known."""
        with torch._C.DisableTorchFunction():
            found = CallKey(self._scope, None)
            try:
                key = found.full_key(args, kwargs)
            except Unhashable:
                return False, None
        if not found.operands:
            return False, None
        unit = traces.find(key, lambda: describe_call(args, kwargs))
        if isinstance(unit, Refusal):
            is_handled, result = (False, None) if otherwise is None else otherwise()
            if is_handled:
                return True, result
            return self._run_as_it_is(unit, original, owner, args, kwargs)
        result = self._add(unit, key, args, kwargs)
        if traces.is_quiet and unit.node is not None and not kwargs:
            self._remember(unit, unit.recorded[key], original, owner, args)
        return True, result

    def _remember(self, unit: Unit, step: Step, original: Any, owner: Any, args: Any) -> None:
        """Take the short way next time: all arguments are recorded tensors, in order."""
        if self._count != changes.count:
            self._quick, self._count = {}, changes.count
        is_plain = all(type(item) is LazyTensor for item in args)
        if is_plain and step.is_whole and unit.block.parameters == tuple(range(len(args))):
            kinds = (item._kind for item in args)
            self._quick[(original, id(owner), *kinds, _is_grad_enabled())] = (unit, step)

    def _add_known(
        self, unit: Unit, step: Step, operands: Sequence[Any], values: Sequence[int]
    ) -> Any:
        scope = self._scope
        if scope.held_units.get(unit, -1) < scope.instance:
            scope.held_units[unit] = scope.instance
        if scope.recorder is not None:
            self.report.count(unit.name, None)
        if step.single is not None and not step.draws:
            return scope.add_single(step, values)
        return scope.add(step, operands, values)

    def _run_as_it_is(
        self, refusal: Refusal, original: Any, owner: Any, args: Any, kwargs: Any
    ) -> tuple[bool, Any]:
        """A call that is no unit; with a profile, what it records is counted."""
        if self._scope.recorder is None:
            return False, None
        before = self._scope.next_value
        result = original(*args, **kwargs) if owner is None else original(owner, *args, **kwargs)
        self.report.count(refusal.name, refusal.reason, self._scope.next_value - before)
        return True, result

    def _add(self, unit: Unit, key: Hashable, args: Any, kwargs: Any) -> Any:
        scope = self._scope
        arguments = _tensors(args, kwargs)
        if unit.node is None:
            return unit.rebuild((), arguments)
        with torch._C.DisableTorchFunction():
            operands = [scope.row(arguments[number]) for number in unit.block.parameters]
            values = [operand._value for operand in operands]
            if unit.recorded is None:
                unit.recorded = {}
            step: Step | None = unit.recorded.get(key)
            if step is None or step.generation != library.generation:
                step = unit.recorded[key] = _learn(unit, operands)
            made = self._add_known(unit, step, operands, values)
        if step.build is not list or step.is_whole:
            return made
        return unit.rebuild(made, arguments)


def _has_tensors_only(items: Iterable[Any]) -> bool:
    """Whether the arguments are tensors and plain values, also in lists and tuples."""
    for item in items:
        kind = type(item)
        if kind is LazyTensor or kind in _SIMPLE:
            continue
        if kind is tuple or kind is list:
            if not _has_tensors_only(item):
                return False
        elif kind is dict:
            if not _has_tensors_only(item.values()):
                return False
        elif not isinstance(item, torch.Tensor):
            return False
    return True


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors among the arguments, in the order of a flattened call."""
    if not kwargs and not any(type(item) in (tuple, list, dict) for item in args):
        return [item for item in args if isinstance(item, torch.Tensor)]
    leaves, _ = flatten((args, kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _learn(unit: Unit, operands: Sequence[Any]) -> Step:
    """The step of a unit for operands of these kinds."""
    assert unit.node is not None
    keys = [Key(draw) for draw in unit.block.keys]
    shared = len(unit.node.inputs) - len(operands) - len(keys)
    taken: list[Any] = [*operands, *map(library.uniform, unit.tensors[:shared]), *keys]
    asks = [_requires_grad(operand) for operand in taken]
    kinds = [_kind(output, asks) for output in unit.outputs]
    number = add_launch(unit.name, unit.node, taken, kinds, unit.autocast)
    places = zip(kinds, unit.outputs, strict=True)
    leaves = [
        Leaf(kind, k, view_of=out.view_of if out.view_of in range(len(operands)) else None)
        for k, (kind, out) in enumerate(places)
    ]
    single = kinds[0] if unit.has_single_output and leaves[0].view_of is None else None
    step = Step(number, len(kinds), single, leaves=tuple(leaves), name=unit.name)
    step.source, step.draws, step.build = unit.node.source, unit.draws, list
    step.build, step.is_whole = _builder(unit, len(kinds), len(operands))
    return step


def _builder(unit: Unit, results: int, operands: int) -> tuple[Callable[..., Any], bool]:
    """How results become what user code gets, and whether that is all of it, in order.

    Operands must come in the order of the arguments for the short way.
    """
    is_plain = unit.block.parameters == tuple(range(operands))
    if unit.has_single_output:
        return _only, is_plain
    markers = [object() for _ in range(results)]
    shape = unit.rebuild(markers, [None] * (max(unit.block.parameters, default=0) + 1))
    is_flat = type(shape) in (tuple, list) and list(shape) == markers
    return (type(shape) if is_flat else list), is_flat and is_plain


def _only(leaves: list[Any]) -> Any:
    return leaves[0]


def _requires_grad(operand: Any) -> bool:
    if isinstance(operand, Key):
        return False
    kind: LazyKind = operand.kind if isinstance(operand, Uniform) else operand._kind
    return kind.requires_grad


def _kind(output: Output, asks: Sequence[bool]) -> LazyKind:
    flows = torch.is_grad_enabled() and any(asks[number] for number in output.flows_from)
    shape = torch.Size(output.shape)
    return intern(output.dtype, shape, tuple(output.stride), output.device, flows)
