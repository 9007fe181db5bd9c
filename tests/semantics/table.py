"""The table of programs that every way to run must agree on: what an entry is, and how to add one.

An entry is a function marked `@table_program`. It gets a `Maker` for one dtype and seed, and
returns a `Case`: the plain-Python program, the same program as a `ps.function`, and instances that
differ in trip counts, shapes and depths. Predicates keep a margin: batched products differ in the
last bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

import penstock as ps

#: Every entry of the table by its name, in the order of the files.
PROGRAMS: dict[str, TableProgram] = {}


class Maker:
    """Makes the weights and inputs of one case; the same dtype and seed make the same values.

    Whole numbers are structure and stay on the host; all else is on `device`.
    """

    def __init__(self, dtype: torch.dtype, seed: int, device: str = "cpu") -> None:
        self.dtype = dtype
        self.device = device
        #: The weights made so far, by the names that programs gave them.
        self.weights: dict[str, Tensor] = {}
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normal values of the case's dtype."""
        values = torch.randn(shape, generator=self._generator, dtype=torch.float64)
        return (values * scale).to(self.device, self.dtype)

    def tensor(self, values: Any) -> Tensor:
        """These values, of the case's dtype."""
        return torch.tensor(values, dtype=self.dtype, device=self.device)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Uniform values of the case's dtype."""
        values = torch.rand(shape, generator=self._generator, dtype=torch.float64)
        return (low + (high - low) * values).to(self.device, self.dtype)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Whole numbers from `low` to `high - 1`, int64."""
        return torch.randint(low, high, shape, generator=self._generator)

    def integer(self, low: int, high: int) -> int:
        """One whole number from `low` to `high - 1`."""
        return int(self.integers(low, high))

    def flags(self, *shape: int) -> Tensor:
        """Random bools."""
        return self.integers(0, 2, *shape).bool()

    def permutation(self, length: int) -> Tensor:
        """The numbers from 0 to `length - 1` in random order, int64."""
        return torch.randperm(length, generator=self._generator)

    def weight(self, name: str, *shape: int, scale: float = 0.5) -> Tensor:
        """A parameter, kept under `name`."""
        self.weights[name] = self.normal(*shape, scale=scale).requires_grad_()
        return self.weights[name]


@dataclass(frozen=True)
class Case:
    """One program with the data to run it on."""

    #: A function of one instance in Python and torch alone; it also runs converted.
    plain: Callable[..., Any]
    #: The same function as a `ps.function`.
    traced: Callable[..., Any]
    #: The arguments of each instance.
    instances: list[tuple[Any, ...]]
    #: What gradients are asked for, besides the floating-point inputs.
    weights: dict[str, Tensor] = field(default_factory=dict)

    #: What is converted, where that is not the plain program itself.
    python: Callable[..., Any] | None = None

    @cached_property
    def converted(self) -> Callable[..., Any]:
        """The plain program, its Python control flow converted."""
        return ps.function(self.python or self.plain)


@dataclass(frozen=True)
class TableProgram:
    """One line of the table."""

    name: str
    build: Callable[[Maker], Case]
    dtypes: tuple[torch.dtype, ...]
    #: Whether gradients with respect to weights and floating-point inputs are defined and compared.
    differentiable: bool

    def case(self, dtype: torch.dtype, seed: int = 0, device: str = "cpu") -> Case:
        """A fresh case: programs, weights and instances of one dtype."""
        maker = Maker(dtype, seed, device)
        case = self.build(maker)
        case.weights.update(maker.weights)
        return case


def table_program(
    *dtypes: torch.dtype, differentiable: bool = True
) -> Callable[[Callable[[Maker], Case]], Callable[[Maker], Case]]:
    """Add the decorated function to the table, for these dtypes (float64 if none is given)."""

    def add(build: Callable[[Maker], Case]) -> Callable[[Maker], Case]:
        name = build.__name__
        assert name not in PROGRAMS, f"two programs are called {name}"
        PROGRAMS[name] = TableProgram(name, build, dtypes or (torch.float64,), differentiable)
        return build

    return add
