"""Types of values in programs and graphs: dtypes, shapes and devices by name.

A dimension is an int where it is the same for every instance, and a symbol (a str such as "n0")
where it is dynamic. Two dimensions with one symbol were equal when the program was traced; nothing
else is known of a symbol.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

Dimension = int | str


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of a tensor of one instance."""

    dtype: str
    shape: tuple[Dimension, ...] = ()
    device: str = "cpu"

    @property
    def is_sequence(self) -> bool:
        """Whether the leading dimension alone is dynamic: stored flattened, elements have slots."""
        dynamic = [isinstance(size, str) for size in self.shape]
        return any(dynamic[:1]) and not any(dynamic[1:])

    @property
    def is_dynamic(self) -> bool:
        """Whether any dimension is dynamic."""
        return any(isinstance(size, str) for size in self.shape)

    @property
    def is_scalar(self) -> bool:
        """Whether the tensor is 0-d."""
        return not self.shape

    @property
    def element(self) -> TensorType:
        """The type of one element along the leading dimension."""
        return replace(self, shape=self.shape[1:])

    def __str__(self) -> str:
        place = "" if self.device == "cpu" else f" on {self.device}"
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]{place}"


@dataclass(frozen=True, slots=True)
class ArrayType:
    """The type of a TensorArray; the element type is None until something is known of it."""

    element: TensorType | None = None

    def __str__(self) -> str:
        return f"array of {self.element or '?'}"


Type = TensorType | ArrayType
