"""A batched form compared with row-by-row execution of its function, on made-up inputs.

Inputs are drawn on the CPU from a generator of our own: torch's random state is not touched, and an
index out of range raises instead of spoiling a device. Moves to other devices are moves to the CPU,
in the batched form and in its function. A draw on which the function itself raises
says nothing; a point where every draw raises is skipped and logged. Disagreement means: on no draw
that ran did all outputs agree up to rounding (ties may fall otherwise). Draws, in order: signed
numbers with integers 0 and 1, positive numbers with distinct integers, and zeros where the others
raised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from penstock.run.batched.inputs import BlockInput
from penstock.run.batched.sizes import ROWS, Point

log = logging.getLogger("penstock")

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


Draw = Callable[[tuple[int, ...], torch.dtype, torch.Generator], torch.Tensor]


def find_disagreement(
    function: Callable[..., Any],
    batched: Callable[..., Any],
    inputs: Sequence[BlockInput],
    points: Sequence[Point],
    examples: Mapping[int, torch.Tensor],
) -> str | None:
    """What is wrong with the batched form at one of the points, or None."""
    for point in points:
        with torch.no_grad():
            problem = _disagreement_at(function, batched, inputs, point, examples)
        if problem is not None:
            return f"at {dict(point)}: {problem}"
    return None


def _disagreement_at(
    function: Callable[..., Any],
    batched: Callable[..., Any],
    inputs: Sequence[BlockInput],
    point: Point,
    examples: Mapping[int, torch.Tensor],
) -> str | None:
    verdicts: list[str | None] = []
    for draw in (_signed, _distinct, _zero):
        if draw is _zero and verdicts:
            break
        arguments = _arguments(inputs, point, examples, draw)
        try:
            with _OnHost():  # type: ignore[no-untyped-call]
                expected = rows_one_by_one(function, inputs, point[ROWS], arguments)
        except Exception as error:  # the user's function may raise anything on made-up inputs
            log.debug("batched form not compared at %s: %s", dict(point), error)
            continue
        verdicts.append(_compare(batched, point[ROWS], arguments, expected))
        if verdicts[-1] is None and not any(map(_has_nan, expected)):
            break
    return verdicts[-1] if verdicts else None


class _OnHost(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operations that name a device make their results on the CPU."""

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        return func(*args, **kwargs)


def rows_one_by_one(
    function: Callable[..., Any],
    inputs: Sequence[BlockInput],
    rows: int,
    arguments: Sequence[Any],
) -> tuple[torch.Tensor, ...]:
    """The function run once for each row, its outputs stacked."""
    is_row = [spec.kind == "row" for spec in inputs]
    results = []
    for index in range(max(rows, 1)):
        picked = [
            _pick(argument, index, rows) if row else argument
            for argument, row in zip(arguments, is_row, strict=True)
        ]
        results.append(function(*picked))
    return tuple(torch.stack(column)[:rows] for column in zip(*results, strict=True))


def _pick(argument: torch.Tensor, index: int, rows: int) -> torch.Tensor:
    return argument[index] if rows else argument.new_zeros(argument.shape[1:])


def _compare(
    batched: Callable[..., Any],
    rows: int,
    arguments: Sequence[Any],
    expected: Sequence[torch.Tensor],
) -> str | None:
    try:
        actual = batched(rows, *arguments)
    except Exception as error:  # a call that torch's function of that name refuses
        return f"{type(error).__name__}: {error}"
    for position, (left, right) in enumerate(zip(actual, expected, strict=True)):
        if left.shape != right.shape or left.dtype != right.dtype:
            return (
                f"output {position}: {left.dtype}{[*left.shape]} for {right.dtype}{[*right.shape]}"
            )
        if not _close(left, right):
            return f"output {position}: values differ"
    return None


def _close(left: torch.Tensor, right: torch.Tensor) -> bool:
    tolerance = _TOLERANCE.get(right.dtype)
    if tolerance is None:
        tolerance = 1e-4 if right.is_complex() else 0.0
    scale = 0.0
    if tolerance and right.numel():
        magnitude = right.abs().double()
        scale = float(torch.where(magnitude.isfinite(), magnitude, 0.0).max())
    return torch.allclose(left, right, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _has_nan(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and bool(tensor.isnan().any())


def _arguments(
    inputs: Sequence[BlockInput], point: Point, examples: Mapping[int, torch.Tensor], draw: Draw
) -> list[Any]:
    generator = torch.Generator().manual_seed(0x5EED)
    return [
        _argument(position, spec, point, examples, draw, generator)
        for position, spec in enumerate(inputs)
    ]


def _argument(
    position: int,
    spec: BlockInput,
    point: Point,
    examples: Mapping[int, torch.Tensor],
    draw: Draw,
    generator: torch.Generator,
) -> Any:
    if spec.kind == "size":
        return point[str(spec.symbol)]
    if position in examples:
        return examples[position].detach().cpu()
    drawn = draw(spec.sizes_at(point, batched=True), spec.torch_dtype, generator)
    return drawn.to(spec.torch_dtype)


def _signed(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    return torch.randint(0, 2, shape, generator=generator)


def _distinct(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1
    count = torch.Size(shape).numel()
    return torch.randperm(count, generator=generator).reshape(shape)


def _zero(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    return torch.zeros(shape)
