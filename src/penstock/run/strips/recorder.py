"""Writes down what generated code does, as words for the interpreter.

The layout of the words is told in `code.hpp`. Memory is named by the buffer that a view lies in:
what a look at indices gives is its operand itself, so nobody may write to either afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from penstock.run.strips.kernels import Kernel
from penstock.run.strips.products import Product
from penstock.run.strips.sizes import (
    CONSTANT,
    Extent,
    Refused,
    count,
    exact,
    is_contiguous,
    plain_strides,
    reach,
    times,
)
from penstock.run.strips.stand_ins import BUFFER, NUMBER, SIZE, Named, View, reinterpret

#: What a step does.
KERNEL, PRODUCT, LOOK = 1, 2, 3
#: The most parameters of a kernel that the interpreter can call.
MOST_PARAMETERS = 160


class Recorder:
    """What was done so far."""

    def __init__(self) -> None:
        #: The memory of each buffer.
        self.buffers: list[Extent] = []
        #: Words of each step.
        self.steps: list[tuple[int, ...]] = []
        #: Inner sizes of float32 products.
        self.products: list[tuple[int, int]] = []
        self.kept: list[object] = []
        #: Kinds and numbers of what must stay as it is.
        self.looked_at: set[tuple[int, int]] = set()

    def names(self, kernels: Mapping[str, Kernel]) -> dict[str, object]:
        """What generated code finds under its global names."""
        known: dict[str, object] = {
            f"torch.{name}": found
            for name, found in vars(torch).items()
            if isinstance(found, torch.dtype)
        }
        known["torch.ops.penstock.linear.default"] = self.linear
        known["torch.ops.penstock.in_range.default"] = self.look
        known["extern_kernels.mm"] = self.mm
        known["extern_kernels.addmm"] = self.addmm
        modules = {name: Named(name, known) for name in ("torch", "extern_kernels")}
        others = {name: Named(name, {}) for name in ("aten", "inductor_ops", "self")}
        return {
            "__builtins__": {},
            "empty_strided_cpu": self.empty,
            "reinterpret_tensor": reinterpret,
            "assert_alignment": _pass,
            "assert_size_stride": _pass,
            **modules,
            **others,
            **{name: self.caller(kernel) for name, kernel in kernels.items()},
        }

    def empty(self, shape: Sequence[Extent], strides: Sequence[Extent], dtype: object) -> View:
        """Memory of its own."""
        if not isinstance(dtype, torch.dtype):
            raise Refused("a buffer of an unknown type")
        self.buffers.append(times(reach(shape, strides), dtype.itemsize))
        number = len(self.buffers) - 1
        return View(BUFFER, number, 0, dtype, tuple(shape), tuple(strides))

    # ---- kernels ---------------------------------------------------------------------------------

    def caller(self, kernel: Kernel) -> Callable[..., None]:
        """A stand-in for a kernel."""

        def call(*given: object) -> None:
            if len(given) != len(kernel.parameters) or len(given) > MOST_PARAMETERS:
                raise Refused(f"a kernel with {len(given)} arguments")
            words = [self._operand(*pair) for pair in zip(given, kernel.parameters)]
            operands = [word for triple in words for word in triple]
            self._add(KERNEL, kernel.address, len(given), *operands)
            self.kept += kernel.kept

        return call

    def _operand(self, given: object, parameter: str) -> tuple[int, int, int]:
        is_pointer = parameter.endswith("*")
        if is_pointer and isinstance(given, View):
            if not parameter.startswith("const "):
                self._write(given)
            return given.place
        if parameter.removeprefix("const ") == "int64_t" and not isinstance(given, View):
            return _number(given)
        raise Refused(f"a {type(given).__name__} for a kernel's {parameter}")

    def _write(self, view: View) -> None:
        if (view.kind, view.index) in self.looked_at:
            raise Refused("indices are overwritten after they were looked at")

    def _add(self, opcode: int, *words: int) -> None:
        self.steps.append((opcode, len(words) + 2, *words))

    # ---- indices ---------------------------------------------------------------------------------

    def look(self, index: View, limit: Extent, may_be_negative: bool) -> View:
        """Indices that are in range from here on."""
        if index.dtype != torch.int64 or not is_contiguous(index.shape, index.strides):
            raise Refused(f"a look at {index.dtype} indices, or at some with gaps")
        self.buffers.append(0)
        number = len(self.buffers) - 1
        self.looked_at |= {(BUFFER, number), (index.kind, index.index)}
        elements, sign = exact(count(index.shape)), int(may_be_negative)
        self._add(LOOK, number, *index.place, *elements, *_number(limit), sign)
        return View(BUFFER, number, 0, index.dtype, index.shape, plain_strides(index.shape))

    # ---- products --------------------------------------------------------------------------------

    def linear(self, rows: View, weight: View, bias: View | None) -> View:
        """`rows @ weight.T + bias` in memory of its own."""
        shape = (rows.shape[0], weight.shape[0])
        out = self.empty(shape, plain_strides(shape), rows.dtype)
        turned = reinterpret(weight, weight.shape[::-1], weight.strides[::-1], 0)
        self._multiply(Product(out, rows, turned, bias))
        return out

    def mm(self, rows: View, matrix: View, *, out: View) -> None:
        """`rows @ matrix`."""
        self._multiply(Product(out, rows, matrix, None))

    def addmm(
        self, bias: View, rows: View, matrix: View, *, alpha: object, beta: object, out: View
    ) -> None:
        """`rows @ matrix + bias`."""
        if alpha != 1 or beta != 1:
            raise Refused("a product with factors")
        self._multiply(Product(out, rows, matrix, bias))

    def _multiply(self, product: Product) -> None:
        words = product.words()
        self._write(product.out)
        self._add(PRODUCT, *words)
        if product.out.dtype == torch.float32:
            self.products.append(product.inner)


def _number(given: object) -> tuple[int, int, int]:
    coefficient, argument = exact(given)
    if argument == CONSTANT:
        return NUMBER, 0, coefficient
    return SIZE, argument, coefficient


def _pass(*args: object) -> None:
    """Checks of what is known."""
