"""All step kinds of the process, with what recording must know of each.

A call is described by a key; equal keys are one step. The library only grows while scopes are
open, and is emptied between scopes once it is full: numbers of kinds, blocks and uniform tensors
then mean something else, so the cache of plans is emptied with it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from penstock.calls.structure import Structure
from penstock.capture.lazy.kinds import LazyKind, kind_of, known_kinds
from penstock.ir.program import Source, TorchCall
from penstock.plan.plan_cache import PlanCache
from penstock.plan.step_kinds import StepKind
from penstock.run.blocks import RunnableBlock
from penstock.run.step_blocks import StepBlock

#: Step kinds and kinds of tensors kept before the library is emptied.
CAPACITY = 20_000


class Uniform:
    """A real tensor that all instances share, as an operand of steps."""

    __slots__ = ("_fetch", "kind", "number")

    def __init__(self, number: int, kind: LazyKind, fetch: Callable[[], torch.Tensor]) -> None:
        self.number, self.kind, self._fetch = number, kind, fetch

    def fetch(self) -> torch.Tensor:
        """The tensor as it is now."""
        return self._fetch()


class Key:
    """The key of a random draw, as an operand of a step."""

    __slots__ = ("draw",)

    def __init__(self, draw: int = 0) -> None:
        #: Counted from the first draw of the step.
        self.draw = draw


class Leaf(NamedTuple):
    """Where one tensor that a step returns comes from."""

    kind: LazyKind
    #: The result of that number; None where no new value is made.
    result: int | None = None
    #: The operand that it is itself, or whose value it has.
    operand: int | None = None
    #: Whether it is the very tensor that came as the operand.
    is_same: bool = False
    #: The operand whose memory it shares.
    view_of: int | None = None


@dataclass(slots=True, eq=False)
class Step:
    """What recording knows of a step kind."""

    #: -1 where nothing is computed.
    number: int
    #: How many values it makes.
    count: int
    #: The kind of the result of a step that returns one new tensor, no view.
    single: LazyKind | None
    structure: Structure | None = None
    #: The short way from leaves to what is returned, where there is one.
    build: Callable[[list[Any]], Any] | None = None
    #: Tensor leaves as `Leaf`, others as they are.
    leaves: tuple[Any, ...] = ()
    draws: int = 0
    name: str = ""
    source: Source | None = None
    #: Whether what is built from the leaves is all that user code gets.
    is_whole: bool = False
    #: Whether it returns one view of its first and only operand.
    is_one_view: bool = False
    #: The generation of the library that its number belongs to.
    generation: int = field(default_factory=lambda: _generation())
    #: How a view is made again from its base: the call without its first argument.
    call: TorchCall | None = None


@dataclass(slots=True, eq=False)
class Library:
    """The steps, blocks and uniform tensors of the process."""

    steps: dict[Hashable, Step] = field(default_factory=dict)
    #: Steps of operators on two recorded tensors, or one and a number, by what they depend on.
    operators: dict[Hashable, Step] = field(default_factory=dict)
    #: How many different numbers each operator has met, by operator and kind of tensor.
    numbers: dict[Hashable, int] = field(default_factory=dict)
    kinds: list[StepKind] = field(default_factory=list)
    blocks: list[RunnableBlock] = field(default_factory=list)
    #: The torch calls of aliases and copies, by the number of the kind.
    moves: dict[int, StepBlock] = field(default_factory=dict)
    #: The kinds that stand for all that an instance records, by its shape; -1 where there is none.
    graphs: dict[Hashable, int] = field(default_factory=dict)
    uniforms: list[Uniform] = field(default_factory=list)
    #: One block of each likeness: those that differ in gradients or shared tensors have one form.
    alike: dict[Hashable, RunnableBlock] = field(default_factory=dict)
    plans: PlanCache = field(default_factory=PlanCache)
    lock: Any = field(default_factory=threading.RLock)
    #: How often everything was forgotten.
    generation: int = 0
    #: Uniform tensors by identity; the entry is right only while its tensor lives.
    _by_tensor: dict[int, tuple[weakref.ref[torch.Tensor], Uniform]] = field(default_factory=dict)
    #: Tensors that more than one instance has read, by identity.
    _shared: dict[int, weakref.ref[torch.Tensor]] = field(default_factory=dict)
    #: How many scopes are open.
    _users: int = 0

    def enter(self) -> None:
        """A scope opens."""
        with self.lock:
            if self._users == 0 and max(len(self.kinds), len(known_kinds)) > CAPACITY:
                self.clear()
            self._users += 1

    def leave(self) -> None:
        """A scope closes."""
        with self.lock:
            self._users -= 1

    def clear(self) -> None:
        """Forget everything."""
        self.generation += 1
        self.operators.clear()
        self.numbers.clear()
        self.moves, self.graphs = {}, {}
        self.steps, self.kinds, self.blocks, self.uniforms = {}, [], [], []
        self.plans, self.alike = PlanCache(), {}
        self._by_tensor, self._shared = {}, {}
        known_kinds.clear()

    def share(self, tensor: torch.Tensor) -> None:
        """From now on, take a tensor for one that all instances share."""
        self._shared[id(tensor)] = weakref.ref(tensor)

    def is_shared(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is taken for one that all instances share."""
        reference = self._shared.get(id(tensor))
        return reference is not None and reference() is tensor

    def uniform(self, tensor: torch.Tensor) -> Uniform:
        """The operand that a shared tensor is."""
        known = self._by_tensor.get(id(tensor))
        if known is not None and known[0]() is tensor:
            uniform = known[1]
            if _is_of_kind(tensor, uniform.kind):
                return uniform
        with self.lock:
            reference = weakref.ref(tensor)
            uniform = self.add_uniform(kind_of(tensor), lambda: _alive(reference))
            self._by_tensor[id(tensor)] = (reference, uniform)
        return uniform

    def add_uniform(self, kind: LazyKind, fetch: Callable[[], torch.Tensor]) -> Uniform:
        """A new shared operand."""
        with self.lock:
            made = Uniform(len(self.uniforms), kind, fetch)
            self.uniforms.append(made)
        return made

    def fetch_uniform(self, number: int) -> torch.Tensor:
        """The shared tensor of that number."""
        return self.uniforms[number].fetch()

    def add_kind(self, kind: StepKind) -> int:
        """The number of a new step kind."""
        with self.lock:
            self.kinds.append(kind)
            return len(self.kinds) - 1

    def add_move(self, kind: StepKind, block: StepBlock) -> int:
        """The number of a new alias or copy, which equals the calls of a block."""
        with self.lock:
            number = self.add_kind(kind)
            self.moves[number] = block
            return number

    def block_of(self, number: int) -> StepBlock:
        """The torch calls of a step kind."""
        block = self.kinds[number].block
        found = self.moves[number] if block < 0 else self.blocks[block]
        assert isinstance(found, StepBlock)
        return found

    def add_block(self, block: RunnableBlock) -> int:
        """The number of a new block."""
        with self.lock:
            self.blocks.append(block)
            return len(self.blocks) - 1


def _is_of_kind(tensor: torch.Tensor, kind: LazyKind) -> bool:
    return (
        kind.requires_grad == tensor.requires_grad
        and kind.shape == tensor.shape
        and kind.dtype is tensor.dtype
        and kind.device == tensor.device
    )


def _alive(reference: weakref.ref[torch.Tensor]) -> torch.Tensor:
    tensor = reference()
    assert tensor is not None, "a recorded step outlived a tensor it reads"
    return tensor


library: Library = Library()


def _generation() -> int:
    return library.generation
