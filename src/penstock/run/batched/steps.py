"""Straight-line tensor code as data: lifted, rewritten by the peephole, printed by the emitter.

A step is one call; its value is named by the step itself, so that arguments simply hold steps.
Sizes inside arguments are integers or polynomials. No step changes a tensor in place, so a value
may always stand for its copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from penstock.run.batched.sizes import Size


@dataclass(frozen=True, slots=True)
class TensorFact:
    """What is known of a tensor at every size."""

    shape: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device


#: A step yields one tensor, several, or something that is not a tensor.
Fact = TensorFact | tuple["Fact", ...] | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Step:
    """One call, or one input or constant where `target` is None."""

    #: An operator overload, `operator.getitem`, or None.
    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    fact: Fact
    #: For constants, the tensor itself, shared by reference; for inputs, None.
    constant: torch.Tensor | None = None
    #: Whether the constant was written out in the code, so that nobody else can change it.
    is_literal: bool = False

    def __repr__(self) -> str:
        return f"<{self.target or 'given'} -> {self.fact}>"

    @property
    def tensor(self) -> TensorFact:
        """The fact of a step that yields one tensor."""
        assert isinstance(self.fact, TensorFact)
        return self.fact


@dataclass(frozen=True, slots=True)
class StraightLine:
    """Code without branches: inputs in order, constants and calls in an order that can be run,
    outputs.
    """

    inputs: tuple[Step, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Step, ...]

    #: How often each step is read, outputs included.
    uses: dict[Step, int] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        uses = dict.fromkeys((*self.inputs, *self.steps), 0)
        for step in self.steps:
            for read in read_steps((step.args, step.kwargs)):
                uses[read] += 1
        for step in self.outputs:
            uses[step] += 1
        object.__setattr__(self, "uses", uses)

    def live(self) -> StraightLine:
        """The same code without steps whose value nobody reads."""
        needed: set[Step] = set(self.outputs)
        for step in reversed(self.steps):
            if step in needed:
                needed.update(read_steps((step.args, step.kwargs)))
        return StraightLine(
            self.inputs, tuple(step for step in self.steps if step in needed), self.outputs
        )


def read_steps(tree: Any) -> Iterator[Step]:
    """The steps inside nested arguments, in order."""
    if isinstance(tree, Step):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from read_steps(item)
    elif isinstance(tree, Mapping):
        yield from read_steps(tuple(tree.values()))


def map_leaves(change: Callable[[Any], Any], tree: Any) -> Any:
    """Nested arguments with every leaf changed; lists and tuples keep their kind."""
    if isinstance(tree, (list, tuple)):
        items = [map_leaves(change, item) for item in tree]
        return items if isinstance(tree, list) else tuple(items)
    if isinstance(tree, Mapping):
        return {key: map_leaves(change, item) for key, item in tree.items()}
    return change(tree)
