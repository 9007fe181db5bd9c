"""Launches of a block's padded form: rows of different sizes, each with its own lengths.

Rows are grouped by bucket. A group whose rows have one size runs unpadded, and so do rows that are
too short for the padded form, or whose operands disagree about a size: these fail as they would
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.plan.buckets import choose_buckets
from penstock.plan.launch_values import (
    Launching,
    new_sequences,
    new_values,
    operand_of,
    sequence_table,
)
from penstock.plan.padding import Padding
from penstock.plan.schedule import Array, Hosted, Integers, Launch, Operand, Sized, Target, Unpad
from penstock.plan.slots import SequenceTable

if TYPE_CHECKING:
    from penstock.plan.linked import LinkedNode


#: All rows of a firing, and none.
ALL, EMPTY = slice(None), np.empty(0, np.int64)


class Group(NamedTuple):
    """Rows that run together, by their positions in a firing."""

    rows: Integers | slice
    #: The padded size of each symbol; None where all rows have one size.
    buckets: dict[str, int] | None


def group_by_bucket(
    machine: Launching,
    node: LinkedNode,
    padding: Padding,
    values: dict[int, Array],
    keys: dict[int, Array],
) -> Iterator[Group]:
    """The rows of a firing in groups; `keys` are the sizes of each dynamic operand."""
    sizes = {name: keys[padding.operands[name][0]] for name in padding.least}
    fits = _fits(padding, keys, sizes)
    is_whole = bool(fits.all())
    chosen = np.flatnonzero(fits)
    if len(chosen):
        taken = ALL if is_whole else chosen
        buckets = {
            name: _buckets(machine, node, _places(padding, name), values, taken, size[taken])
            for name, size in sizes.items()
        }
        for mine, key in equal_rows(list(buckets.values())):
            rows = mine if is_whole else chosen[mine]
            is_equal = all(map(_is_one, (size[rows] for size in sizes.values())))
            yield Group(rows, None if is_equal else dict(zip(buckets, key, strict=True)))
    rest = EMPTY if is_whole else np.flatnonzero(~fits)
    if len(rest):
        for mine, _ in equal_rows([size[rest] for size in keys.values()]):
            yield Group(rest[mine], None)


def _fits(
    padding: Padding, keys: dict[int, Array], sizes: dict[str, Array]
) -> npt.NDArray[np.bool_]:
    """Which rows are long enough, and have the sizes that the form takes for granted."""
    fits = np.ones(len(next(iter(keys.values()))), np.bool_)
    for name, places in padding.operands.items():
        root, more = padding.ties.get(name, (name, 0))
        fits &= sizes[root] >= padding.least[root]
        for place in places:
            if more or place != padding.operands[root][0]:
                fits &= keys[place] == sizes[root] + more
    return fits


def _is_one(sizes: Array) -> bool:
    """Whether all are the same."""
    return bool((sizes == sizes[0]).all())


def equal_rows(columns: Sequence[Integers]) -> Iterator[tuple[Integers | slice, list[int]]]:
    """The places of each distinct row of these columns, in ascending order."""
    if all(map(_is_one, columns)):
        yield ALL, [int(column[0]) for column in columns]
        return
    unique, which = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    which = which.reshape(-1)
    for number, key in enumerate(unique):
        yield np.flatnonzero(which == number), [int(item) for item in key]


def _buckets(
    machine: Launching,
    node: LinkedNode,
    places: Iterable[int],
    values: dict[int, Array],
    chosen: Integers | slice,
    sizes: Integers,
) -> Integers:
    """A padded size for each row: that of the padded copy that the operand with the largest
    elements has already, or the one that suits all rows without.
    """
    tables = [(place, sequence_table(machine, node.node.inputs[place])) for place in places]
    found = {place: table for place, table in tables if table is not None}
    widths = {place: prod(table.space.kind.shape) for place, table in found.items()}
    width = 1 + sum(widths.values())
    known = np.zeros(len(sizes), np.int64)
    if found:
        widest = max(widths, key=widths.__getitem__)
        known = machine.bundles.buckets(found[widest], values[widest][chosen])
    if not known.all():
        new = np.flatnonzero(known == 0)
        known[new] = choose_buckets(sizes[new], width, is_in_loop=node.is_in_loop)
    return known


def _places(padding: Padding, symbol: str) -> Iterator[int]:
    """The operands that have a symbol or one tied to it."""
    for name, places in padding.operands.items():
        if padding.ties.get(name, (name, 0))[0] == symbol:
            yield from places


def launch_padded(
    machine: Launching,
    node: LinkedNode,
    padding: Padding,
    rows: Integers,
    values: dict[int, Array],
    keys: dict[int, Array],
    buckets: dict[str, int],
) -> None:
    """Launch the padded form for rows of different sizes."""
    sizes = {name: keys[padding.operands[name][0]] for name in padding.least}
    operands = _operands(machine, node, padding, values, buckets)
    operands += [Hosted(size) for size in sizes.values()]
    targets: list[Target] = []
    delivered: list[Array] = []
    after: list[Unpad] = []
    lengths = padding.result_lengths(sizes)
    tops = lengths
    if any(own is not None for own in lengths):
        tops = padding.result_lengths({k: np.array([size]) for k, size in buckets.items()})
    for wire, own, top in zip(node.node.outputs, lengths, tops, strict=True):
        if own is None or top is None:
            target, slots = new_values(machine, wire, len(rows), None)
        else:
            table = machine.place(wire)
            assert isinstance(table, SequenceTable)
            base = np.cumsum(own) - own
            flat, slots = new_sequences(machine, table, base, own, None)
            target = machine.bundles.target(table.space.kind, int(top[0]), len(rows))
            after.append(Unpad(target, own, flat, int(top[0])))
        targets.append(target)
        delivered.append(slots)
    machine.put_launch(
        node, rows, Launch(padding.block, len(rows), tuple(operands), tuple(targets))
    )
    machine.out.extend(after)
    machine.bundles.free_results()
    if node.output is not None:
        machine.deliver(node.output, rows, delivered)


def _operands(
    machine: Launching,
    node: LinkedNode,
    padding: Padding,
    values: dict[int, Array],
    buckets: dict[str, int],
) -> list[Operand]:
    """The operands of the block itself, sequences as padded copies."""
    bucket = {p: size for name, size in buckets.items() for p in _places(padding, name)}
    operands: list[Operand] = []
    for position, wire in enumerate(node.node.inputs):
        table = sequence_table(machine, wire)
        if table is not None:
            copies, make = machine.bundles.copy(table, values[position], bucket[position])
            machine.out.extend([] if make is None else [make])
            operands.append(copies)
        elif position in bucket:
            operands.append(Sized(bucket[position]))
        else:
            operands.append(operand_of(machine, wire, values.get(position)))
    return operands
