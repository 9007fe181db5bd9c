"""From a torch call to a step: which operands it has, and what it returns.

What a step returns is found once per key, by running the call on fake tensors; that also tells
which results share memory with an operand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from penstock.calls.autocast import OFF, current_autocast
from penstock.calls.replay import fill
from penstock.calls.structure import flatten
from penstock.calls.torch_names import name_of
from penstock.capture.lazy.call_keys import CallKey, Templates
from penstock.capture.lazy.kinds import LazyKind, kind_of
from penstock.capture.lazy.library import Key, Leaf, Step, Uniform, library
from penstock.capture.lazy.step_blocks import add_launch, one_call_node, step_block, taken_operands
from penstock.capture.source import user_source
from penstock.capture.traced_draws import TYPED
from penstock.ir.program import Operand, TorchCall
from penstock.plan.step_kinds import StepKind
from penstock.run.batched.functorch_adapter import TRACING, quiet_fakes

if TYPE_CHECKING:
    from penstock.capture.lazy.scope import Scope


class CannotTry(Exception):
    """A call fails on tensors without contents; the argument is the error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


_fake_mode = FakeTensorMode()


def fake_operand(operand: Any) -> torch.Tensor:
    """What stands for an operand when a call is only tried: its own, so that a result that is an
    operand or shares its memory tells which.
    """
    with TRACING, torch._C.DisableTorchFunction(), torch.inference_mode(False), _fake_mode:
        if isinstance(operand, Key):
            return torch.empty((), dtype=torch.int64)
        kind: LazyKind = operand.kind if isinstance(operand, Uniform) else operand._kind
        made = torch.empty_strided(kind.shape, kind.stride, dtype=kind.dtype, device=kind.device)
        return made.requires_grad_(kind.requires_grad)


def try_call(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What a call on fake tensors returns."""
    with TRACING, quiet_fakes(), torch._C.DisableTorchFunction(), _fake_mode:
        return function(*args, **kwargs)


def learn_step(
    scope: Scope, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, found: CallKey
) -> Step:
    """The step of a call that is seen for the first time."""
    operands = found.operands
    templates = Templates(scope, operands)
    frozen = templates.frozen(args)
    named = tuple((name, templates.frozen(item)) for name, item in kwargs.items())
    fakes = [fake_operand(operand) for operand in operands]
    filled = {name: fill(item, fakes) for name, item in named}
    try:
        returned = try_call(_typed(function), fill(frozen, fakes), filled)
    except Exception as error:  # torch may raise anything
        raise CannotTry(error) from None
    leaves, structure = flatten(returned)
    name = name_of(function)
    call = TorchCall(name, frozen, named)
    made = _Results(operands, fakes, leaves)
    step = Step(-1, len(made.new), None, structure, leaves=tuple(made.leaves), name=name)
    step.source, step.call = user_source(), call
    step.draws = sum(isinstance(operand, Key) for operand in operands)
    if made.new:
        step.number = _add_kind(step, call, operands, made)
        only = len(leaves) == 1 and leaves[0] is returned and made.leaves[0].view_of is None
        step.single = made.new[0] if only else None
    is_flat = type(returned) in (tuple, list) and all(a is b for a, b in zip(returned, leaves))
    if len(leaves) == 1 and leaves[0] is returned:
        step.build = _only
        only_leaf = made.leaves[0]
        is_first = len(operands) == 1 and frozen[:1] == (Operand(0),)
        is_view = isinstance(only_leaf, Leaf) and only_leaf.view_of == 0
        step.is_one_view = is_first and is_view and not only_leaf.is_same
    elif is_flat and len(returned) == len(leaves):
        step.build = type(returned)
    return step


def _only(leaves: list[Any]) -> Any:
    return leaves[0]


def _typed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, or for one that draws another with the same types."""
    name = name_of(function)
    return TYPED[name.rpartition(".")[2]] if name.startswith("penstock.random.") else function


def _add_kind(step: Step, call: TorchCall, operands: list[Any], made: _Results) -> int:
    short = step.name.rpartition(".")[2].strip("_") or step.name
    stored = tuple(kind.stored for kind in made.new)
    parts = made.parts()
    returned = [leaf for leaf in made.leaves if isinstance(leaf, Leaf)]
    node = one_call_node(short, call, operands, returned, step.source)
    if parts is not None or _is_copy(call, operands, made):
        taken = taken_operands(operands)
        kind = StepKind(short, taken, stored, parts=parts or (), is_copy=parts is None)
        return library.add_move(kind, step_block(node, operands, made.new, OFF))
    autocast = current_autocast() if torch._C._is_any_autocast_enabled() else OFF
    return add_launch(short, node, operands, made.new, autocast)


class _Results:
    """The tensors that a call returns, told apart: new values, views, operands themselves."""

    def __init__(self, operands: list[Any], fakes: list[torch.Tensor], leaves: list[Any]) -> None:
        self._operands, self._fakes = operands, fakes
        self.new: list[LazyKind] = []
        #: Of each new value its fake and the operand whose memory it shares.
        self._shared: list[tuple[torch.Tensor, int | None]] = []
        self.leaves = [
            self._leaf(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
        ]

    def _leaf(self, fake: torch.Tensor) -> Leaf:
        for number, operand in enumerate(self._fakes):
            if fake is operand:
                return Leaf(_kind_of_operand(self._operands[number]), None, number, is_same=True)
        kind = kind_of(fake)
        base = self._base(fake)
        if base is not None and not torch.is_grad_enabled():
            kind = kind.with_grad(False)
        if base is not None and self._is_whole(fake, kind, base):
            return Leaf(kind, None, base, view_of=base)
        self.new.append(kind)
        self._shared.append((fake, base))
        return Leaf(kind, len(self.new) - 1, view_of=base)

    def _base(self, fake: torch.Tensor) -> int | None:
        place = fake.untyped_storage()._cdata
        for number, operand in enumerate(self._fakes):
            if operand.untyped_storage()._cdata == place:
                return number
        return None

    def _is_whole(self, fake: torch.Tensor, kind: LazyKind, base: int) -> bool:
        """Whether a view has all slots of its base, stored in the same way."""
        operand = self._operands[base]
        if isinstance(operand, Uniform | Key):
            return False
        around: LazyKind = operand._kind
        is_plain = kind.is_contiguous and around.is_contiguous
        is_alike = kind.shape == around.shape and kind.stride == around.stride
        return kind.stored == around.stored and (is_plain or is_alike)

    def parts(self) -> tuple[tuple[int, int | None], ...] | None:
        """Of results that are runs of elements of the first operand: where each begins."""
        operand = self._operands[0] if self._operands else None
        if operand is None or isinstance(operand, Uniform | Key):
            return None
        if any(base != 0 for _, base in self._shared) or not operand._kind.is_contiguous:
            return None
        arena = operand._kind.stored.kind
        size = torch.Size(arena.shape).numel()
        found = []
        for (fake, _), kind in zip(self._shared, self.new, strict=True):
            offset = fake.storage_offset()
            if kind.stored.kind != arena or not kind.is_contiguous or not size or offset % size:
                return None
            found.append((offset // size, kind.stored.length))
        return tuple(found)


def _kind_of_operand(operand: Any) -> LazyKind:
    kind: LazyKind = operand.kind if isinstance(operand, Uniform) else operand._kind
    return kind


_JOINS = frozenset(
    ["torch.cat", "torch.concat", "torch.concatenate", "torch.stack", "torch.vstack"]
)


def _is_copy(call: TorchCall, operands: list[Any], made: _Results) -> bool:
    """Whether the result is the elements of the operands, one after the other."""
    if call.name not in _JOINS or len(made.new) != 1:
        return False
    dimension = dict(call.kwargs).get("dim", call.args[1] if len(call.args) > 1 else 0)
    if dimension != 0 or not call.args or not isinstance(call.args[0], tuple):
        return False
    if tuple(call.args[0]) != tuple(map(Operand, range(len(operands)))):
        return False
    kind = made.new[0]
    # a copy hands gradients to all operands, so none may be a detached name of what has some
    return kind.stored.length is not None and all(
        not isinstance(operand, Uniform | Key)
        and operand._kind.stored.kind == kind.stored.kind
        and operand._kind.requires_grad >= kind.requires_grad
        for operand in operands
    )
