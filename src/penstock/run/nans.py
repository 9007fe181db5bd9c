"""Finds where the first NaN comes from: the block, the instance and the user's line.

Used only where somebody asked for it: every launch is then looked at, which waits for the device. A
row that receives a NaN is not to blame for passing it on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from penstock.errors import NanError, report
from penstock.ir.program import Source
from penstock.plan.schedule import Integers
from penstock.run.blocks import RunnableBlock
from penstock.run.faults import Numbers


def has_nan(values: object) -> bool:
    """Whether a value is a tensor with a NaN in it."""
    return isinstance(values, torch.Tensor) and _floats(values) and bool(values.isnan().any())


def _floats(values: torch.Tensor) -> bool:
    return values.is_floating_point() or values.is_complex()


def first_bad_row(
    rows: int, given: Iterable[torch.Tensor], made: Iterable[torch.Tensor]
) -> int | None:
    """The first row with a NaN in what was made, but none in what was given; both [rows, ...]."""
    bad = _rows_with_nan(rows, made) & ~_rows_with_nan(rows, given)
    return int(bad.nonzero()[0]) if bad.any() else None


def _rows_with_nan(rows: int, tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    found = torch.zeros(rows, dtype=torch.bool)
    for values in tensors:
        if _floats(values) and values.numel():
            found |= values.reshape(rows, -1).isnan().any(dim=1).cpu()
    return found


def check_launch(
    block: RunnableBlock,
    rows: int,
    arguments: Sequence[torch.Tensor | int],
    outputs: Sequence[torch.Tensor],
    instances: Integers,
    numbers: Numbers,
) -> None:
    """Raise if the block has made a NaN for some row out of operands without one."""
    specs = zip(block.inputs, arguments, strict=True)
    given = [a for spec, a in specs if spec.kind == "row" and isinstance(a, torch.Tensor)]
    row = first_bad_row(rows, given, outputs)
    if row is not None:
        single = one_row(block, arguments, row)
        source = _forward_line(block, single)
        raise nan_error(block, "", source, instances, row, numbers)


def one_row(
    block: RunnableBlock, arguments: Sequence[torch.Tensor | int], row: int
) -> list[torch.Tensor | int]:
    """The arguments of the block for one row alone."""
    return [
        argument[row] if spec.kind == "row" and isinstance(argument, torch.Tensor) else argument
        for spec, argument in zip(block.inputs, arguments, strict=True)
    ]


def nan_error(
    block: RunnableBlock,
    half: str,
    source: Source | None,
    instances: Integers | None,
    row: int,
    numbers: Numbers,
) -> NanError:
    """The error that names the place; `half` is "" or ".backward"."""
    source = source or block.node.source
    facts = [("block", f"{block.name}{half}")]
    if numbers is not None and instances is not None and row < len(instances):
        facts.insert(0, ("instance", str(numbers[int(instances[row])])))
    what = "The gradient of a value is NaN." if half else "A computed value is NaN."
    todo = "Look at this line: a division by zero, log or sqrt at 0 or below, inf - inf or 0 * inf."
    return NanError(report(what, where=str(source) if source else None, facts=facts, todo=todo))


def _forward_line(block: RunnableBlock, arguments: Sequence[torch.Tensor | int]) -> Source | None:
    """The line of the first call that makes a NaN."""
    calls, _ = block.executed(arguments)
    return next((made.node.source for made in calls if any(map(has_nan, made.outputs))), None)


def backward_line(
    block: RunnableBlock,
    arguments: Sequence[torch.Tensor | int],
    cotangents: Sequence[torch.Tensor | None],
) -> Source | None:
    """The line of the last call whose derivative makes a NaN out of cotangents without one."""
    with torch.enable_grad():
        calls, results = block.executed([_leaf(argument) for argument in arguments])
    tensors = (item for made in calls for item in (*made.operands, *made.outputs))
    tracked = {id(tensor): tensor for tensor in tensors if _is_tracked(tensor)}
    pairs = [
        (result, grad[tuple(map(slice, result.shape))])  # cotangents may be padded
        for result, grad in zip(results, cotangents, strict=True)
        if grad is not None and isinstance(result, torch.Tensor) and result.requires_grad
    ]
    if not pairs:
        return None
    outputs, weights = zip(*pairs, strict=True)
    grads = torch.autograd.grad(outputs, list(tracked.values()), weights, allow_unused=True)  # type: ignore[arg-type]
    spoiled = {place for place, grad in zip(tracked, grads, strict=True) if has_nan(grad)}
    for made in reversed(calls):
        if spoiled & set(map(id, made.operands)) and not spoiled & set(map(id, made.outputs)):
            return made.node.source
    return None


def _is_tracked(value: torch.Tensor | int) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _leaf(argument: torch.Tensor | int) -> torch.Tensor | int:
    if isinstance(argument, int) or not _floats(argument):
        return argument
    return argument.detach().requires_grad_()
