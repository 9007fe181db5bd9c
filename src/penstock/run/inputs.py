"""The inputs of a call: for the planner what of them steers it, and the data themselves in arenas.

Reading comes first and makes no slots: a plan may be known by what was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, overload

import numpy as np
import torch

from penstock.ir.graph import Input
from penstock.ir.types import TensorType
from penstock.plan.call_inputs import Adopted, CallInputs, HostInput, SlotInput, by_shape
from penstock.plan.schedule import Array, Integers, Span

if TYPE_CHECKING:
    from penstock.run.engine import Columns, Run

Column = Sequence[torch.Tensor] | torch.Tensor


class Pieces(Sequence[torch.Tensor]):
    """The values of instances that lie one after the other in one tensor, which asks for no
    gradients. They are cut apart when somebody wants a single one.
    """

    def __init__(self, joined: torch.Tensor, lengths: Sequence[int]) -> None:
        self.joined, self.lengths = joined, np.array(lengths, np.int64)

    @cached_property
    def _parts(self) -> Sequence[torch.Tensor]:
        return torch.split(self.joined, self.lengths.tolist())

    def __len__(self) -> int:
        """How many instances there are."""
        return len(self.lengths)

    @overload
    def __getitem__(self, number: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[torch.Tensor]: ...
    def __getitem__(self, number: int | slice) -> torch.Tensor | Sequence[torch.Tensor]:
        """The value of an instance."""
        return self._parts[number]


def tensors_of(column: Column) -> Sequence[torch.Tensor]:
    """The tensors that hold the values of a column: one where all lie in one."""
    if isinstance(column, Pieces):
        return [column.joined]
    return [column] if isinstance(column, torch.Tensor) else column


def read_inputs(run: Run, columns: Columns) -> CallInputs:
    """What the planner must know of the inputs, in the forms in which the graph reads them."""
    host: list[HostInput | None] = []
    slots: list[SlotInput | None] = []
    for entry in run.executable.graph.inputs:
        if entry.uniform is not None:
            host.append(_shared_host(run, entry) if entry.host is not None else None)
            slots.append(SlotInput(is_shared=True) if entry.slot is not None else None)
            continue
        assert entry.number is not None
        column = columns[entry.number]
        host.append(_host(entry, column) if entry.host is not None else None)
        slots.append(_slots(entry, column) if entry.slot is not None else None)
    return CallInputs(run.count, tuple(host), tuple(slots))


def _shared_host(run: Run, entry: Input) -> HostInput:
    assert entry.uniform is not None
    value: Array = run.uniform(entry.uniform.number).cpu().numpy()
    return HostInput(np.broadcast_to(value, (run.count,)))


def _host(entry: Input, column: Column) -> HostInput:
    assert isinstance(entry.type, TensorType)
    joined = _flattened(column) if entry.type.is_sequence else _stacked(column)
    values: Array = joined.numpy(force=True)
    return HostInput(values, _lengths(column) if entry.type.is_sequence else None)


def _slots(entry: Input, column: Column) -> SlotInput:
    if _is_sequence(entry):
        return SlotInput(lengths=_lengths(column))
    if _is_boxed(entry):
        return SlotInput(shapes=tuple(tuple(tensor.shape) for tensor in column))
    return SlotInput()


def install_inputs(run: Run, columns: Columns, adopted: Adopted) -> None:
    """Put the data into the slots that they have got."""
    for span, values in input_values(run, columns, adopted):
        run.arena(span.arena).install(span.start, values)
    run.shared_slots = _count_shared(run, adopted)


def _count_shared(run: Run, adopted: Adopted) -> dict[int, int]:
    """For each arena how many slots hold a value that all instances have."""
    counts: dict[int, int] = {}
    for entry, spans in zip(run.executable.graph.inputs, adopted, strict=True):
        if entry.uniform is not None:
            for span in spans:
                counts[span.arena] = counts.get(span.arena, 0) + span.count
    return counts


def input_values(
    run: Run, columns: Columns, adopted: Adopted
) -> Iterator[tuple[Span, torch.Tensor]]:
    """The slots that inputs have got, with their data."""
    for entry, spans in zip(run.executable.graph.inputs, adopted, strict=True):
        if spans:
            for span, values in zip(spans, _chunks(run, entry, columns), strict=True):
                yield span, values.detach()


def _chunks(run: Run, entry: Input, columns: Columns) -> Iterator[torch.Tensor]:
    """The tensors of an input that become chunks of arenas."""
    if entry.uniform is not None:
        yield run.uniform(entry.uniform.number).unsqueeze(0)
        return
    assert entry.number is not None
    column = columns[entry.number]
    if _is_sequence(entry):
        yield _flattened(column)
    elif _is_boxed(entry):
        for numbers in by_shape(tuple(tensor.shape) for tensor in column).values():
            yield torch.stack([column[number] for number in numbers])
    else:
        yield _stacked(column)


def _is_sequence(entry: Input) -> bool:
    return isinstance(entry.type, TensorType) and entry.type.is_sequence


def _is_boxed(entry: Input) -> bool:
    return isinstance(entry.type, TensorType) and entry.type.is_dynamic


def _stacked(column: Column) -> torch.Tensor:
    return column if isinstance(column, torch.Tensor) else torch.stack(list(column))


def _flattened(column: Column) -> torch.Tensor:
    """All elements of all instances."""
    if isinstance(column, Pieces):
        return column.joined
    if isinstance(column, torch.Tensor):
        return column.flatten(0, 1)
    if len(column) == 1:  # it may be larger than the memory that is left
        values = column[0]
        is_plain = values.is_contiguous() and not values.is_conj() and not values.is_neg()
        return values if is_plain else values.resolve_conj().resolve_neg().contiguous()
    return torch.cat(list(column))


def _lengths(column: Column) -> Integers:
    """How many elements each instance has."""
    if isinstance(column, Pieces):
        return column.lengths
    if isinstance(column, torch.Tensor):
        return np.full(column.shape[0], column.shape[1], np.int64)
    if column[0].dim() == 1:
        return np.fromiter(map(torch.Tensor.numel, column), np.int64, len(column))
    return np.array([values.shape[0] for values in column], np.int64)
