"""Eager programs, the ways to map them, and what it means that two ways agree.

A program is built anew for every run, from one seed, since eager code may change what it is given.
The expectation is always the plain loop over the instances. Observed are outputs, what the program
left behind (`make.watch`), and the gradients of a weighted sum of both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

import penstock as ps

GRANULARITIES = ("op", "module", "graph", "auto")

RTOL, ATOL = 1e-9, 1e-11


class Maker:
    """Hands out seeded tensors and modules, and remembers which of them get gradients."""

    def __init__(self, seed: int = 0, parameters: list[nn.Parameter] | None = None) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        #: Those of an earlier build of the program, which this one takes over one by one.
        self.parameters = [] if parameters is None else parameters
        self.used = 0
        self.leaves: list[torch.Tensor] = []
        self.watched: Callable[[], Any] = lambda: None

    def tensor(self, *shape: int, grad: bool = True) -> torch.Tensor:
        """Normal numbers, at a distance from zero, so that no sign hangs on rounding."""
        numbers = torch.randn(shape, generator=self.generator)
        numbers = numbers + 0.05 * numbers.sign()
        return self.leaf(numbers) if grad else numbers

    def tensors(self, count: int, *shape: int, grad: bool = True) -> list[torch.Tensor]:
        """One tensor for each instance."""
        return [self.tensor(*shape, grad=grad) for _ in range(count)]

    def sentences(self, lengths: tuple[int, ...], size: int) -> list[torch.Tensor]:
        """Sequences of different lengths."""
        return [self.tensor(length, size) for length in lengths]

    def integers(self, high: int, *shape: int) -> torch.Tensor:
        """Numbers below `high`."""
        return torch.randint(high, shape, generator=self.generator)

    def leaf(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, which gets a gradient from now on."""
        self.leaves.append(tensor.requires_grad_())
        return tensor

    def module(self, module: nn.Module) -> Any:
        """The module, with seeded parameters: the same objects in every build of a program."""
        for owner in module.modules():
            for name, parameter in owner._parameters.items():
                if parameter is not None:
                    owner._parameters[name] = self._parameter(parameter)
        self.leaves.extend(module.parameters())
        return module

    def _parameter(self, fresh: nn.Parameter) -> nn.Parameter:
        if self.used == len(self.parameters):
            self.parameters.append(fresh)
        parameter = self.parameters[self.used]
        self.used += 1
        with torch.no_grad():
            parameter.copy_(0.5 * torch.randn(fresh.shape, generator=self.generator))
        return parameter

    def watch(self, look: Callable[[], Any]) -> None:
        """What `look` returns after the run is compared too."""
        self.watched = look


class Program(NamedTuple):
    """Makes a function and its columns; `warns` says that it may warn that it is not batched."""

    name: str
    build: Callable[[Maker], tuple[Any, ...]]
    warns: bool = False
    tolerance: float = RTOL
    is_one_line: bool = False


class Observed(NamedTuple):
    """What one way of running a program gave."""

    leaves: list[Any]
    structure: Any
    gradients: list[torch.Tensor | None]


class Table(dict[str, Program]):
    """Programs by name."""

    def program(self, fn: Any = None, *, warns: bool = False, tolerance: float = RTOL) -> Any:
        """Enter the decorated builder under its name."""

        def enter(build: Callable[[Maker], tuple[Any, ...]]) -> Any:
            name = build.__name__.replace("_", " ").strip()
            assert name not in self
            self[name] = Program(name, build, warns, tolerance)
            return build

        return enter if fn is None else enter(fn)

    def one_liners(self, prefix: str, entries: dict[str, Callable[..., Any]], *shape: int) -> None:
        """Enter functions of one tensor `x` (and weights `w`, square and of its last size)."""
        for name, fn in entries.items():

            def build(make: Maker, fn: Callable[..., Any] = fn) -> tuple[Any, ...]:
                takes_weight = fn.__code__.co_argcount > 1
                w = make.tensor(shape[-1], shape[-1]) if takes_weight else None
                rows = make.tensors(3, *shape)
                return (lambda x: fn(x, w)) if takes_weight else fn, rows

            assert f"{prefix} {name}" not in self
            self[f"{prefix} {name}"] = Program(f"{prefix} {name}", build, is_one_line=True)


def plainly(fn: Any, *columns: Any, **shared: Any) -> list[Any]:
    """What `ps.map` means."""
    return [fn(*row, **shared) for row in zip(*columns, strict=True)]


def in_batching(fn: Any, *columns: Any, **shared: Any) -> list[Any]:
    """The plain loop, inside a lazy scope."""
    with ps.batching():
        return plainly(fn, *columns, **shared)


def _mapped(granularity: str) -> Callable[..., Any]:
    def run(fn: Any, *columns: Any, **shared: Any) -> Any:
        return ps.map(fn, *columns, granularity=granularity, **shared)

    return run


def under_set_eager(fn: Any, *columns: Any, **shared: Any) -> Any:
    """`ps.map` in plain Python semantics."""
    with ps.set_eager(True):
        return ps.map(fn, *columns, **shared)


MAPS: dict[str, Callable[..., Any]] = {name: _mapped(name) for name in GRANULARITIES}
WAYS: dict[str, Callable[..., Any]] = {**MAPS, "batching": in_batching}


#: The parameters of each program, by its builder: what is built for them need not be built anew.
_PARAMETERS: dict[Callable[..., Any], list[nn.Parameter]] = {}


def observe(program: Program, way: Callable[..., Any]) -> Observed:
    """Build the program, run it that way, and differentiate what came out."""
    make = Maker(parameters=_PARAMETERS.setdefault(program.build, []))
    fn, *columns = program.build(make)
    outputs = way(fn, *columns)
    if way is not in_batching:
        assert_ordinary(outputs)
    leaves, structure = tree_flatten((outputs, make.watched()))
    return Observed(leaves, structure, gradients_of(leaves, make.leaves))


def assert_ordinary(outputs: Any) -> None:
    """Results of a map are plain tensors with memory of their own."""
    for leaf in tree_flatten(outputs)[0]:
        if isinstance(leaf, torch.Tensor):
            assert type(leaf) in (torch.Tensor, nn.Parameter)
            assert leaf.device.type == "cpu"


def gradients_of(outputs: list[Any], leaves: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """The gradients of a weighted sum of all outputs that have one."""
    total = weighted_sum(outputs)
    if total is None or not leaves:
        return [None] * len(leaves)
    return list(torch.autograd.grad(total, leaves, allow_unused=True))


def weighted_sum(outputs: Any) -> torch.Tensor | None:
    """One number, in which every element of every output has a weight of its own."""
    generator = torch.Generator().manual_seed(99)
    total = None
    for leaf in tree_flatten(outputs)[0]:
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            weights = torch.randn(leaf.shape, generator=generator)
            term = (leaf.to(weights.dtype) * weights).sum()
            total = term if total is None else total + term
    return total


def assert_agree(actual: Observed, expected: Observed, tolerance: float = RTOL) -> None:
    """The same structure, values, dtypes and gradients."""
    assert actual.structure == expected.structure
    for found, wanted in zip(actual.leaves, expected.leaves, strict=True):
        assert_same(found, wanted, tolerance)
    for found, wanted in zip(actual.gradients, expected.gradients, strict=True):
        assert_same_gradient(found, wanted, tolerance)


def assert_same(found: Any, wanted: Any, tolerance: float = RTOL) -> None:
    """Two leaves are alike: as tensors, or as Python values."""
    if isinstance(wanted, torch.Tensor):
        assert isinstance(found, torch.Tensor)
        assert found.requires_grad == wanted.requires_grad
        atol = max(ATOL, tolerance / 100)
        torch.testing.assert_close(
            found.detach(), wanted.detach(), rtol=tolerance, atol=atol, equal_nan=True
        )
    elif isinstance(wanted, float):
        assert abs(found - wanted) <= ATOL + tolerance * abs(wanted)
    else:
        assert type(found) is type(wanted)
        assert found == wanted


def assert_same_gradient(
    found: torch.Tensor | None, wanted: torch.Tensor | None, tolerance: float = RTOL
) -> None:
    """Two gradients are alike. What was written over may have none where torch has zeros."""
    if found is None and wanted is not None:
        assert not wanted.any()
    else:
        assert_same(found, wanted, tolerance)


def compare(build: Callable[[Maker], tuple[Any, ...]], way: Callable[..., Any]) -> None:
    """A program that is not in a table agrees with the plain loop."""
    program = Program(build.__name__, build)
    assert_agree(observe(program, way), observe(program, plainly))
