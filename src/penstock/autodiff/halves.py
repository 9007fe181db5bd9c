"""Splits a joint trace: which steps are forward, and which of their values the backward half reads.

Equal computations are named alike in every trace of the same code, so that the halves of different
traces fit together.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import prod

import torch

from penstock.run.batched.sizes import ROWS, Polynomial, at
from penstock.run.batched.steps import Step, StraightLine, TensorFact, map_leaves, read_steps

#: Calls that only look at their operand in another shape.
_VIEWS = (
    torch.ops.aten.permute.default,
    torch.ops.aten.t.default,
    torch.ops.aten.transpose.int,
    torch.ops.aten.view.default,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten.reshape.default,
    torch.ops.aten.unsqueeze.default,
    torch.ops.aten.squeeze.dim,
    torch.ops.aten.squeeze.dims,
    torch.ops.aten.expand.default,
)

_TRANSPARENT = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


@dataclass(frozen=True, slots=True)
class Saved:
    """One value that the forward half leaves for the backward half."""

    key: object
    #: The dimension that counts rows, and how many of its entries belong to one row (as a size);
    #: None: no rows in it.
    dimension: int | None
    per_row: int | Polynomial
    #: Bytes of each row; 0 where that depends on more than how many rows there are.
    row_bytes: int = 0

    def select(self, values: torch.Tensor, rows: int, index: torch.Tensor) -> torch.Tensor:
        """The part of a saved value that belongs to some of the rows."""
        if self.dimension is None:
            return values
        if values.shape[self.dimension] == rows:
            return values.index_select(self.dimension, index)
        apart: torch.Tensor = values.unflatten(self.dimension, (rows, -1))  # type: ignore[no-untyped-call]
        return apart.index_select(self.dimension, index).flatten(self.dimension, self.dimension + 1)


class Halves:
    """Which steps of a joint trace are forward, and which of them the backward half reads.

    With `saves_rows` the backward half computes all that it reads again, from rows of operands.
    """

    def __init__(
        self, code: StraightLine, primals: int, uniforms: set[int], *, saves_rows: bool = False
    ) -> None:
        self.primals = primals
        self.uniforms = uniforms
        self.saves_rows = saves_rows
        self._given = set(code.inputs)
        tangents = set(code.inputs[primals:])
        self.is_backward = set(tangents)
        self.is_uniform = {code.inputs[k] for k in uniforms}
        self.keys: dict[Step, object] = {step: ("input", k) for k, step in enumerate(code.inputs)}
        for step in code.steps:
            reads = list(read_steps((step.args, step.kwargs)))
            self.keys[step] = _key(step, self.keys)
            if any(read in self.is_backward for read in reads):
                self.is_backward.add(step)
            elif step.constant is not None or all(read in self.is_uniform for read in reads):
                self.is_uniform.add(step)
        #: Views of saved values and what else is made again by the backward half.
        self.again: set[Step] = set()
        self.saved = self._find_saved(code)

    def _find_saved(self, code: StraightLine) -> list[Step]:
        saved: dict[Step, None] = {}
        live = set(code.outputs)
        for step in reversed(code.steps):
            if step not in live:
                continue
            reads = list(read_steps((step.args, step.kwargs)))
            live.update(reads)
            if step in self.is_backward or step in self.again:
                for read in reads:
                    self._keep(read, saved)
        return [step for step in (*code.inputs, *code.steps) if step in saved]

    def _keep(self, read: Step, saved: dict[Step, None]) -> None:
        """A value that the backward half reads: views are made again, so that each value is saved
        once.
        """
        if read in self.is_backward or read in self.is_uniform:
            return
        if read.target in _VIEWS or (self.saves_rows and read not in self._given):
            self.again.add(read)
        else:
            saved[read] = None

    def describe(self, step: Step) -> Saved:
        """What is saved for a step, and where its rows are."""
        fact = step.fact
        assert isinstance(fact, TensorFact)
        for dimension, size in enumerate(fact.shape):
            if isinstance(size, Polynomial) and any(ROWS in names for names, _ in size.terms):
                one = {ROWS: 1, **{name: 1 for names, _ in size.terms for name in names}}
                return Saved(self.keys[step], dimension, at(size, one), _row_bytes(fact))
        return Saved(self.keys[step], None, 0)


def _row_bytes(fact: TensorFact) -> int:
    terms = [term for size in fact.shape if isinstance(size, Polynomial) for term in size.terms]
    if any(names != (ROWS,) for names, _ in terms):
        return 0
    return prod(at(size, {ROWS: 1}) for size in fact.shape) * fact.dtype.itemsize


def _key(step: Step, keys: dict[Step, object]) -> object:
    """A name for what a step computes, the same in every trace of the same code.

    A digest, because a name that held the names it is made of would double with every step.
    """
    if step.constant is not None:
        return ("constant", id(step.constant))
    parts = (str(step.target), _frozen(step.args, keys), _frozen(dict(step.kwargs), keys))
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _frozen(tree: object, keys: dict[Step, object]) -> object:
    if isinstance(tree, Step):
        return keys[tree]
    if isinstance(tree, list | tuple):
        return tuple(_frozen(item, keys) for item in tree)
    if isinstance(tree, dict):
        return tuple((name, _frozen(item, keys)) for name, item in sorted(tree.items()))
    return repr(tree)


def named_once(code: StraightLine) -> StraightLine:
    """The code with equal computations made once, and copies for autograd's sake left out."""
    keys: dict[Step, object] = {step: ("input", k) for k, step in enumerate(code.inputs)}
    first: dict[object, Step] = {}
    same: dict[Step, Step] = {}

    def resolve(item: object) -> object:
        return same.get(item, item) if isinstance(item, Step) else item

    steps: list[Step] = []
    for step in code.steps:
        args, kwargs = map_leaves(resolve, step.args), map_leaves(resolve, dict(step.kwargs))
        if step.target in _TRANSPARENT:
            same[step] = args[0]
            continue
        clean = Step(step.target, args, kwargs, step.fact, step.constant, step.is_literal)
        keys[clean] = key = _key(clean, keys)
        if key in first:
            same[step] = first[key]
            continue
        first[key] = same[step] = clean
        steps.append(clean)
    outputs = tuple(same.get(step, step) for step in code.outputs)
    return StraightLine(code.inputs, tuple(steps), outputs)
