"""Operations that compiled code computes in its own way, and the product it calls.

torch's float32 tanh is exact to half a unit in the last place and takes as long as five other
operations. Compiled code uses a quotient of polynomials that is exact to 4e-7, relatively, also
near zero. Products keep the choice that plain code has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.run.batched import products

aten = torch.ops.aten

#: tanh(x) is x P(x²) / Q(x²) between -LIMIT and LIMIT, beyond which it rounds to 1: the fit with
#: the least relative error for these degrees, lowest coefficient first.
LIMIT = 9.0
NUMERATOR = (
    0.9999999792587326,
    0.13380375385551577,
    0.00349481499190882,
    2.0596317564819687e-05,
    1.333687190164874e-08,
)
DENOMINATOR = (
    1.0,
    0.4671369082257167,
    0.025874043189198934,
    0.0003284368737262329,
    7.769300343038897e-07,
)


def tanh(x: torch.Tensor) -> Any:
    """tanh of float32 values; others are left to torch."""
    if x.dtype != torch.float32:
        return NotImplemented
    inside = x.clamp(-LIMIT, LIMIT)
    square = inside * inside
    quotient = inside * _polynomial(NUMERATOR, square) / _polynomial(DENOMINATOR, square)
    return quotient.clamp(-1.0, 1.0)


def _polynomial(coefficients: tuple[float, ...], x: torch.Tensor) -> torch.Tensor:
    value = x * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        value = value * x + coefficient
    return value


# ---- products ------------------------------------------------------------------------------------


def _linear_of_fakes(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[0])


_library: Any = torch.library.Library("penstock", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("linear(Tensor rows, Tensor weight, Tensor? bias) -> Tensor")
_library.impl("linear", products.linear, "CPU")
torch.library.register_fake("penstock::linear", _linear_of_fakes, lib=_library)


def _linear(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    made: torch.Tensor = torch.ops.penstock.linear.default(rows, weight, bias)
    return made


def _has_choice(*tensors: torch.Tensor) -> bool:
    return all(
        tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.dim() == 2
        for tensor in tensors
    )


def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """`rows @ weight.T + bias`."""
    return _linear(rows, weight, bias) if _has_choice(rows, weight) else NotImplemented


def mm(rows: torch.Tensor, matrix: torch.Tensor) -> Any:
    """`rows @ matrix`."""
    return _linear(rows, matrix.t()) if _has_choice(rows, matrix) else NotImplemented


def addmm(bias: torch.Tensor, rows: torch.Tensor, matrix: torch.Tensor) -> Any:
    """`rows @ matrix + bias`."""
    has_choice = _has_choice(rows, matrix) and bias.dim() == 1
    return _linear(rows, matrix.t(), bias) if has_choice else NotImplemented


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.tanh.default: tanh,
    aten.linear.default: linear,
    aten.mm.default: mm,
    aten.addmm.default: addmm,
}
