"""Traces one call into a unit.

The call runs once on tensors without contents. Whatever it was found to write outside, while it
did, is put back, and the call is refused; so is a call that changes its arguments, that reads the
contents of a tensor, or that is more than one straight line of torch calls.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode

from penstock.calls.autocast import current_autocast
from penstock.calls.structure import Structure, flatten
from penstock.capture.captures import Capture
from penstock.capture.lazy.active_calls import paused
from penstock.capture.lazy.guarded_values import PLAIN_TENSORS, SIMPLE_TYPES
from penstock.capture.lazy.mode import RecordingMode
from penstock.capture.lazy.snapshots import Snapshot
from penstock.capture.lazy.unit_outputs import find_outputs
from penstock.capture.lazy.units import Refusal, Signature, Unit
from penstock.capture.leaf_types import StaticLeaf
from penstock.capture.leaves import as_values
from penstock.capture.signatures import Callee
from penstock.capture.trace import InputLeaf, TracedProgram, TraceRequest, trace
from penstock.capture.traced_tensor import plain_size
from penstock.capture.worlds import dtype_called
from penstock.errors import PenstockError
from penstock.ir.program import Captured, Program, TorchCall
from penstock.passes.unit_block import Kept, Place, Uniform, UnitBlock, obstacle, unit_block


class Refused(Exception):
    """The call cannot be a unit; the reason is in words."""


@dataclass(slots=True)
class _Returned:
    """What the traced function gave back, besides tensors."""

    structure: Structure | None = None
    #: Static leaves as they are; None where a tensor goes.
    leaves: list[StaticLeaf | None] = field(default_factory=list)


def trace_unit(
    target: Any, name: str, signature: Signature, *, returns_numbers: bool = True
) -> Unit | Refusal:
    """The unit of a call of `target`: a function, a bound method or a module.

    Without `returns_numbers`, numbers that it returns become tensors, as in a `ps.function`.
    """
    try:
        with paused(), without_recording():
            return _traced(target, name, signature, returns_numbers)
    except Refused as problem:
        return Refusal(name, str(problem))
    except PenstockError as error:
        return Refusal(name, _first_line(error))
    except Exception as error:  # user code may raise anything; the call itself will raise it again
        return Refusal(name, f"it fails: {type(error).__name__}: {_first_line(error)}")


def _traced(target: Any, name: str, signature: Signature, returns_numbers: bool) -> Unit:
    _check_arguments(signature)
    returned = _Returned()
    call = functools.partial(_run, target, returned, returns_numbers)
    callee = Callee(call, name, (id(target),), inspect.Signature(), autograph=False)
    request = TraceRequest(
        callee, signature.structure, signature.leaves, pinned=_all_dimensions(signature)
    )
    snapshot = Snapshot(target)
    try:
        traced = trace(request)
    finally:
        written = snapshot.restore()
    if written is not None:
        raise Refused(f"it writes {written}")
    return _unit(traced, returned, name)


def _unit(traced: TracedProgram, returned: _Returned, name: str) -> Unit:
    problem = obstacle(traced.program) or _hidden_write(traced.program)
    if problem is not None:
        raise Refused(problem)
    block = unit_block(traced.program)
    assert block is not None
    assert returned.structure is not None
    captures = tuple(_capture(traced, uniform) for uniform in block.uniforms)
    _check_results(block, captures)
    places = iter(block.results)
    leaves = tuple(next(places) if leaf is None else leaf for leaf in returned.leaves)
    return Unit(
        name,
        block,
        captures,
        tuple(capture.tensor for capture in captures),
        () if block.node is None else find_outputs(block.node, current_autocast()),
        returned.structure,
        leaves,
        traced.program,
        current_autocast(),
        torch.get_default_device() if any(map(_is_constant, captures)) else None,
    )


def _check_arguments(signature: Signature) -> None:
    if not any(isinstance(leaf, InputLeaf) for leaf in signature.leaves):
        raise Refused("it takes no tensor")
    for leaf in signature.leaves:
        if not isinstance(leaf, (InputLeaf, *SIMPLE_TYPES)):
            raise Refused(f"an argument is a {type(leaf).__name__}")


def _all_dimensions(signature: Signature) -> frozenset[tuple[int, int]]:
    inputs = [leaf for leaf in signature.leaves if isinstance(leaf, InputLeaf)]
    return frozenset((k, d) for k, leaf in enumerate(inputs) for d in range(len(leaf.shape)))


def _run(
    target: Any, returned: _Returned, returns_numbers: bool, /, *args: Any, **kwargs: Any
) -> list[torch.Tensor]:
    """Call `target`, and keep what is not a tensor apart."""
    before, shape = flatten((args, kwargs))
    result = target(*args, **kwargs)
    after, shape_after = flatten((args, kwargs))
    if shape != shape_after or any(a is not b for a, b in zip(before, after, strict=True)):
        raise Refused("it changes a container that it was given")
    if not _containers((args, kwargs)).isdisjoint(_containers(result)):
        raise Refused("it returns a container that it was given")
    if not returns_numbers:
        result = as_values(result, "what the function returns", "result")
    leaves, returned.structure = flatten(result)
    returned.leaves = [_static(leaf) for leaf in leaves]
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _static(leaf: Any) -> StaticLeaf | None:
    if isinstance(leaf, torch.Tensor):
        return None
    if isinstance(leaf, str) and "<traced " in leaf:
        raise Refused("it writes the contents of a tensor into a string")
    if not isinstance(leaf, SIMPLE_TYPES):
        raise Refused(f"it returns a {type(leaf).__name__}")
    return StaticLeaf(plain_size(leaf))


def _containers(value: Any) -> set[int]:
    """The lists and dicts in a value, by identity."""
    found: set[int] = set()
    items: Any = ()
    if isinstance(value, list | dict):
        found.add(id(value))
    if isinstance(value, dict):
        items = value.values()
    elif isinstance(value, list | tuple):
        items = value
    return found.union(*map(_containers, items))


def _capture(traced: TracedProgram, uniform: Uniform) -> Capture:
    operation = uniform.operation
    if isinstance(operation, Captured):
        capture = traced.captures[operation.index]
        if type(capture.tensor) not in PLAIN_TENSORS:
            raise Refused(f"it reads a recorded tensor ({capture.name})")
        return replace(capture, name=capture.name.replace("partial[0]", "self"))
    dtype = dtype_called(uniform.type.dtype)
    with torch._C.DisableTorchFunction():
        made = torch.tensor(operation.value, dtype=dtype, device=uniform.type.device)
    return Capture(f"constant {operation.value}", made)


def _check_results(block: UnitBlock, captures: tuple[Capture, ...]) -> None:
    """A tensor made from numbers alone is a new one at every call, and not the one of the trace."""
    for place in block.results:
        if isinstance(place, Kept) and _is_constant(captures[place.uniform]):
            raise Refused("it returns a tensor that it makes from numbers alone")


def _is_constant(capture: Capture) -> bool:
    """Whether the trace made the tensor, from numbers alone."""
    return capture.owner is None and capture.name.startswith("constant")


#: For calls that may change tensors that they are given: where the argument is that says so, and
#: where the tensors are.
_WRITING = {
    "batch_norm": (("training", 5), (1, 2)),
    "instance_norm": (("use_input_stats", 5), (1, 2)),
    "embedding": (("max_norm", 3), (1,)),
    "embedding_bag": (("max_norm", 3), (1,)),
}


def _hidden_write(program: Program) -> str | None:
    """Why a call changes tensors it is given, though its name does not say so."""
    for function in program.functions:
        for node in function.body.walk():
            call = node.operation
            if isinstance(call, TorchCall) and _writes(call):
                return f"{call.name} changes tensors of the module"
    return None


def _writes(call: TorchCall) -> bool:
    found = _WRITING.get(call.name.rsplit(".", 1)[-1])
    if found is None:
        return False
    (word, position), tensors = found
    kwargs = dict(call.kwargs)
    decides = kwargs.get(word, call.args[position] if len(call.args) > position else None)
    names = ("input", "running_mean", "running_var")
    given = [kwargs.get(names[k], call.args[k] if len(call.args) > k else None) for k in tensors]
    return bool(decides) and (word == "max_norm" or any(item is not None for item in given))


@contextmanager
def without_recording() -> Iterator[None]:
    """Take the modes that record eager code from torch's stack; others stay."""
    modes = _set_modes(None)
    _set_modes([mode for mode in modes if not isinstance(mode, RecordingMode)])
    try:
        yield
    finally:
        _set_modes(modes)


def _set_modes(wanted: list[Any] | None) -> list[Any]:
    """Make these the modes of torch's stack, if any are given; those that were there before."""
    before = list(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]
    if wanted is not None:
        for _ in before:
            _pop_mode()  # type: ignore[no-untyped-call]
        for mode in wanted:
            _push_mode(mode)  # type: ignore[no-untyped-call]
    return before


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


__all__ = ["Place", "Refused", "trace_unit", "without_recording"]
