"""What user code holds while it is traced: tensors without contents, and the sizes of their
dimensions.

A traced tensor is a real `torch.Tensor` subclass and stands for one value of the program. Every
call on it is seen by the tracer's function mode. A static size is an int that remembers which input
dimensions it came from.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from penstock.capture.active import active_tracer
from penstock.capture.location import user_line
from penstock.capture.worlds import Fakes, SizePair
from penstock.errors import PenstockError, report
from penstock.ir.program import Value

if TYPE_CHECKING:
    from penstock.capture.scopes import Scope

#: Dimensions of entry inputs, as (input, dimension).
Origins = frozenset[tuple[int, int]]

NO_ORIGINS: Origins = frozenset()


@dataclass(slots=True, eq=False)
class Facts:
    """All that the tracer knows of one traced tensor."""

    value: Value
    fakes: Fakes
    #: The body that defines the value.
    scope: Scope
    #: Whether the host could have it: whole numbers from sizes, inputs and constants, and tables of
    #: such numbers.
    is_control: bool = False
    #: Whether it is the same for all instances.
    is_uniform: bool = False
    #: Whether it came into its body from outside, so that changing it in place would be seen there.
    is_input: bool = False
    #: The Python number it stands for, where it is a constant.
    number: bool | int | float | None = None
    #: Its contents, where it was made from constants alone.
    contents: torch.Tensor | None = None
    #: Its value in both worlds, where it is a size.
    hint: SizePair | None = None
    #: For each dimension, the input dimensions its size came from.
    origins: tuple[Origins, ...] = ()
    #: The same tensor stored as a sequence, once that was needed.
    sequence: TracedTensor | None = None


class TracedTensor(torch.Tensor):
    """A tensor of the program being traced."""

    traced: Facts

    @staticmethod
    def __new__(cls, facts: Facts) -> TracedTensor:
        fake = facts.fakes[0]
        tensor: TracedTensor = torch.Tensor._make_wrapper_subclass(
            cls, tuple(fake.shape), dtype=fake.dtype, device=fake.device
        )
        return tensor

    def __init__(self, facts: Facts) -> None:
        self.traced = facts

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Reached only where no tracer is at work."""
        raise _escaped()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Reached by what torch.func takes apart, else by calls that bypass torch functions."""
        tracer = active_tracer()
        if tracer is not None and tracer.records_operators:
            return tracer.operator(func, args, kwargs or {})
        raise _escaped()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"<traced {self.traced.value.type}>"

    __hash__ = object.__hash__


def _escaped() -> PenstockError:
    """Not a TypeError: torch's operators would replace it by one of their own."""
    return PenstockError(
        report(
            "A traced value was used after its program had been traced.",
            where=user_line(),
            facts=[("used here", "a traced tensor"), ("expected", "a tensor with contents")],
            todo="Return values from the function instead of storing them elsewhere.",
        )
    )


class TracedDimension(int):
    """A static size that remembers the input dimensions it came from."""

    origins: Origins

    @staticmethod
    def __new__(cls, size: int, origins: Origins) -> TracedDimension:
        dimension = int.__new__(cls, size)
        dimension.origins = origins
        return dimension

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


def _arithmetic(name: str) -> Callable[[TracedDimension, Any], Any]:
    plain: Callable[[int, Any], Any] = getattr(int, name)

    def compute(self: TracedDimension, other: Any) -> Any:
        result = plain(self, other)
        if type(result) is not int:
            return result
        return TracedDimension(result, self.origins | getattr(other, "origins", NO_ORIGINS))

    return compute


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    setattr(TracedDimension, f"__{_name}__", _arithmetic(f"__{_name}__"))
    setattr(TracedDimension, f"__r{_name}__", _arithmetic(f"__r{_name}__"))


class TracedShape(tuple[Any, ...]):
    """What `.shape` gives: `TracedDimension`s, and traced integers where it is dynamic."""

    __slots__ = ()

    def numel(self) -> Any:
        """The number of elements."""
        return math.prod(self)

    def __getitem__(self, index: Any) -> Any:
        found = tuple.__getitem__(self, index)
        return TracedShape(found) if isinstance(index, slice) else found

    def __add__(self, other: Any) -> TracedShape:
        return TracedShape(tuple.__add__(self, tuple(other)))


def plain_size(value: Any) -> Any:
    """A `TracedDimension` as an int; anything else as it is."""
    return operator.index(int(value)) if type(value) is TracedDimension else value
