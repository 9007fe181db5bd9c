"""Products that have two ways give the same values on both, however their operands lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from penstock.run.batched import products
from penstock.run.batched.steps import TensorFact

ROWS, INNER, COLUMNS = 300, 150, 120
LAYOUTS = ("plain", "turned", "every second", "repeated")


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def values(layout: str, *shape: int) -> Tensor:
    """Random values that lie in memory in one of several ways."""
    generator = torch.Generator().manual_seed(sum(shape))
    if layout == "turned":
        return torch.randn(shape[::-1], generator=generator).permute(*range(len(shape))[::-1])
    if layout == "every second":
        return torch.randn(*shape[:-1], 2 * shape[-1], generator=generator)[..., ::2]
    if layout == "repeated":
        return torch.randn(1, generator=generator).expand(shape)
    return torch.randn(shape, generator=generator)


@pytest.mark.parametrize("of_rows", LAYOUTS)
@pytest.mark.parametrize("of_weight", LAYOUTS)
@pytest.mark.parametrize("of_bias", LAYOUTS)
def test_linear_of_many_rows_is_torchs(of_rows: str, of_weight: str, of_bias: str) -> None:
    rows, weight = values(of_rows, ROWS, INNER), values(of_weight, COLUMNS, INNER)
    bias = values(of_bias, COLUMNS)
    assert products._is_for_onednn(rows, weight)
    expected = torch.nn.functional.linear(rows.double(), weight.double(), bias.double())
    found = products.linear(rows, weight, bias)
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("of_rows", LAYOUTS)
@pytest.mark.parametrize("of_matrix", LAYOUTS)
def test_a_product_of_many_rows_is_torchs(of_rows: str, of_matrix: str) -> None:
    rows, matrix = values(of_rows, ROWS, INNER), values(of_matrix, INNER, COLUMNS)
    expected = (rows.double() @ matrix.double()).float()
    torch.testing.assert_close(products.mm(rows, matrix), expected, rtol=1e-4, atol=1e-3)
    bias = values("repeated", COLUMNS)
    found = products.addmm(bias, rows, matrix) - bias
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("layout", [*LAYOUTS, "part", "part turned"])
def test_a_weight_with_gaps_is_closed_up_first(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oneDNN multiplies by a matrix with gaps a thousand times as slowly."""
    seen: list[Tensor] = []
    product = products._onednn

    def note(rows: Tensor, weight: Tensor, *rest: object) -> Tensor:
        seen.append(weight)
        return product(rows, weight, *rest)

    monkeypatch.setattr(products, "_onednn", note)
    wide = {"part": (COLUMNS, 2 * INNER), "part turned": (2 * COLUMNS, INNER)}
    if layout in wide:
        shape = wide[layout]
        weight = values("plain" if layout == "part" else "turned", *shape)[:COLUMNS, :INNER]
    else:
        weight = values(layout, COLUMNS, INNER)
    rows = values("plain", ROWS, INNER)
    found = (
        products.linear(rows, weight),
        products.mm(rows, weight.t()),
        products.turned_product(rows.t(), weight.t()),
    )
    expected = (rows.double() @ weight.double().t()).float()
    for made in found:
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-3)
    assert len(seen) == len(found)
    assert all(each.is_contiguous() or each.t().is_contiguous() for each in seen)


SMALL: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "few rows": lambda rows, weight: (rows[:8], weight),
    "little work": lambda rows, weight: (rows[:, :4], weight[:, :4]),
    "no plain tensor": lambda rows, weight: (torch.nn.Parameter(rows), weight),
}


@pytest.mark.parametrize("choose", SMALL.values(), ids=list(SMALL))
def test_the_blas_multiplies_what_is_small_or_not_plain(
    choose: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
) -> None:
    rows, weight = choose(torch.randn(ROWS, INNER), torch.randn(COLUMNS, INNER))
    assert not products._is_for_onednn(rows, weight)


def test_products_under_autograd_are_differentiable() -> None:
    rows, weight = torch.randn(ROWS, INNER), torch.randn(COLUMNS, INNER, requires_grad=True)
    with torch.enable_grad():
        assert products.linear(rows, weight).requires_grad


@pytest.mark.parametrize(
    ("shape", "dtype", "device"),
    [
        ((ROWS, INNER), torch.float64, "cpu"),
        ((ROWS, INNER), torch.float32, "cuda"),
        ((2, ROWS, INNER), torch.float32, "cpu"),
    ],
)
def test_only_float32_matrices_on_cpu_have_a_choice(
    shape: tuple[int, ...], dtype: torch.dtype, device: str
) -> None:
    assert not products.has_choice(TensorFact(shape, dtype, torch.device(device)))
    assert products.has_choice(TensorFact((ROWS, INNER), torch.float32, torch.device("cpu")))
