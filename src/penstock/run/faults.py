"""Errors of a run in the user's own terms: with the line and the instance that they belong to.

A fault of the planner becomes the error that an eager call raises. What torch raises in a launch
stays itself and gets a note; the row to blame is found by running the block again, row by row,
which happens only then.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from penstock.errors import ArgumentError, SizeError, report
from penstock.ir.program import Source
from penstock.ir.types import TensorType
from penstock.plan.faults import RowFault
from penstock.plan.schedule import Integers
from penstock.run.blocks import Failure, RunnableBlock
from penstock.run.memory.exhaustion import is_out_of_memory

#: For each instance of a batch its number in the map; None for a single call, which needs no name.
Numbers = Sequence[int] | None

#: Rows of a failed launch that are tried one by one, at most.
MOST_TRIED = 4096

#: The attribute of an exception that holds the row that raised it, where rows run one by one.
_BLAMED = "_penstock_row"


class user_errors:
    """Turns a fault of a row into the error that it is for the user."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, found: BaseException | None, trace: object) -> None:
        if isinstance(found, RowFault):
            instance = None if self.numbers is None else self.numbers[found.instance]
            error = found.fault.at(None if found.source is None else str(found.source), instance)
            raise error from None


def note_launch(
    error: Exception,
    block: RunnableBlock,
    arguments: Sequence[torch.Tensor | int],
    instances: Integers,
    numbers: Numbers,
) -> tuple[int | None, Exception]:
    """Add to an exception of a launch the block, the first instance that fails, and the line; the
    row that fails, where it is known, and the exception that an eager call raises.
    """
    row, failure = _culprit(error, block, arguments, len(instances))
    source = (failure and failure.source) or block.node.source
    note = f"in block {block.name}"
    if row is not None and numbers is not None:
        note += f", for instance {numbers[instances[row]]}"
    eager = _eager_error(error, failure)
    eager.add_note(note if source is None else f"{note}, at {source}")
    return row, eager


def _eager_error(error: Exception, failure: Failure | None) -> Exception:
    """What an eager call raises: some functions check an index that the batched form only uses, and
    raise an error of another class.
    """
    if failure is None or isinstance(error, IndexError):
        return error
    return failure.error if isinstance(failure.error, IndexError) else error


def sizes_as_traced(
    error: RuntimeError, block: RunnableBlock, outputs: Sequence[torch.Tensor]
) -> RuntimeError | SizeError:
    """The error to raise where results cannot be stored: about a result that is not of the size
    that its type says, if there is one.
    """
    for wire, values in zip(block.node.outputs, outputs, strict=False):
        kind, made = wire.type, tuple(values.shape[1:])
        if isinstance(kind, TensorType) and not kind.is_dynamic and made != kind.shape:
            return SizeError(
                report(
                    "A value has another size than when the program was traced.",
                    where=str(block.node.source) if block.node.source else None,
                    facts=[("traced", str(list(kind.shape))), ("found", str(list(made)))],
                    todo="Give empty sequences, of which x[:1] and x[-1:] are empty, a branch of"
                    " their own: if len(x) == 0.",
                )
            )
    return error


def absent_device(device: str, count: int, source: Source | None) -> ArgumentError:
    """The error of a program that is placed on a GPU that is not there."""
    return ArgumentError(
        report(
            "A program is placed on a device that is not there.",
            where=None if source is None else str(source),
            facts=[("placed on", device), ("found", f"{count} CUDA devices")],
            todo="Name a device that is there (`penstock doctor` lists them), or run without"
            " ps.device: a program runs where its inputs and parameters are.",
        )
    )


def blame_row(error: Exception, row: int) -> None:
    """Remember which row of a launch has raised an exception."""
    setattr(error, _BLAMED, row)


def note_uniform(error: Exception, source: Source | None) -> None:
    """Add the line to an exception of a value that is computed once for all instances."""
    if source is not None:
        error.add_note(f"at {source}")


def _culprit(
    error: Exception, block: RunnableBlock, arguments: Sequence[torch.Tensor | int], rows: int
) -> tuple[int | None, Failure | None]:
    """The first row for which the block fails by itself, and how."""
    if isinstance(error, torch.AcceleratorError) or is_out_of_memory(error):
        return None, None  # the device answers nothing any more, or the next row would fail too
    blamed: int | None = getattr(error, _BLAMED, None)
    if blamed is not None:
        return blamed, None
    is_row = [spec.kind == "row" for spec in block.inputs]
    for row in range(min(rows, MOST_TRIED)):
        single = [
            argument[row] if by_row and isinstance(argument, torch.Tensor) else argument
            for argument, by_row in zip(arguments, is_row, strict=True)
        ]
        failure = block.failure(single)
        if failure is not None:
            return row, failure
    return None, None
