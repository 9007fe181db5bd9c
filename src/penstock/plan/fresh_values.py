"""What a flush makes: how each new value is stored, who makes it, what it is a part of.

An alias makes nothing: its results are parts of its operand, wherever that will be. Aliases of
aliases are resolved here, so that the rest of the planner never meets one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.plan.record_graph import RecordGraph, Steps
from penstock.plan.schedule import Integers
from penstock.plan.slots import ranges
from penstock.plan.value_table import KindTable, ValueTable

if TYPE_CHECKING:
    from penstock.plan.recorded import Recorded


class Fresh(NamedTuple):
    """The values that records make, in recording order."""

    values: Integers
    #: For each value its record, and its number among the results of all kinds.
    owners: Integers
    results: Integers
    #: Which of them are aliases.
    aliases: Integers


def enter_values(recorded: Recorded, values: ValueTable, kinds: KindTable) -> Fresh:
    """Enter what records make into the table of values."""
    made = kinds.made[recorded.kinds]
    numbers = ranges(recorded.results, made)
    owners = np.repeat(np.arange(len(made)), made)
    results = ranges(kinds.first[recorded.kinds], made)
    values.reserve(int(numbers.max(initial=-1)) + 1)
    values.form[numbers] = kinds.result_form[results]
    values.maker[numbers] = owners
    is_alias = kinds.is_alias[recorded.kinds]
    aliases = numbers[:0]
    if is_alias.any():
        mine = np.flatnonzero(is_alias[owners])
        arity = kinds.arity[recorded.kinds]
        operand = (np.cumsum(arity) - arity)[owners[mine]]
        aliases = numbers[mine]
        values.root[aliases] = recorded.operands[operand]
        values.offset[aliases] = kinds.result_start[results[mine]]
        _resolve(values, aliases)
        arenas = values.form_arena[values.form[[aliases, values.root[aliases]]]]
        assert (arenas[0] == arenas[1]).all(), "an alias is in the arena of its operand"
    return Fresh(numbers, owners, results, aliases)


def _resolve(values: ValueTable, aliases: Integers) -> None:
    """Let each alias name the value at the end of its chain; chains halve in length each time."""
    root, offset = values.root, values.offset
    while True:
        above = root[aliases]
        beyond = root[above]
        if (above == beyond).all():
            return
        root[aliases], offset[aliases] = beyond, offset[aliases] + offset[above]


def find_steps(recorded: Recorded, kinds: KindTable) -> Steps:
    """The records that are no aliases."""
    arity = kinds.arity[recorded.kinds]
    operands, taken = recorded.operands, recorded.kinds
    is_alias = kinds.is_alias[taken] != 0
    records = np.arange(len(taken))
    results = recorded.results
    if is_alias.any():
        operands = operands[~np.repeat(is_alias, arity)]
        records = np.flatnonzero(~is_alias)
        taken, arity, results = taken[records], arity[records], results[records]
    return Steps(records, taken, arity, operands, results, kinds.cells[taken])


def number_cells(
    fresh: Fresh, steps: Steps, graph: RecordGraph, values: ValueTable, kinds: KindTable
) -> Integers:
    """By value: the number of its first slot among those that the nodes fill, node by node."""
    cells = steps.cells[graph.order]
    first = np.zeros(int(fresh.owners[-1]) + 1, np.int64)
    first[steps.records[graph.order]] = np.cumsum(cells) - cells
    numbers = np.zeros(len(values.form), np.int64)
    numbers[fresh.values] = first[fresh.owners] + kinds.result_start[fresh.results]
    return numbers
