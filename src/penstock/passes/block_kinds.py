"""Which torch calls may share a block: row-wise ones, those that mix, and the rest.

A block that mixes along a dynamic dimension is launched for groups of rows of like sizes. So what
only passes through it is drawn in: row-wise calls that lie between others of it, or that would
repeat a row's own value for every element. And in loops what is heavy by itself, products with
weights that know nothing of the dimension, is kept out, and runs for all rows at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock.ir.graph import Compute, Home, Wire
from penstock.ir.program import RowLoop
from penstock.ir.types import TensorType
from penstock.passes.draft import DraftOperation, TorchStep
from penstock.passes.rowwise import flat_symbol
from penstock.passes.steps import Step

DATA, MIXING = "data", "mixing"


def kind_of(operation: DraftOperation) -> str | None:
    """What kind of block an operation goes to, by itself; None stands alone."""
    match operation:
        case Compute():
            return "host"
        case TorchStep(node=node) if isinstance(node.operation, RowLoop):
            return f"row loop {node.outputs[0].number}"
        case TorchStep(node=node):
            symbol = flat_symbol(node)
            return f"flat {symbol}" if symbol else DATA
        case _:
            return None


def settle_kinds(steps: Sequence[Step], reads: Counter[Wire], *, is_loop: bool) -> None:
    """Change the kinds of steps by what is around them; steps come in order."""
    readers: dict[Wire, list[Step]] = {}
    for step in steps:
        for wire in step.node.inputs:
            readers.setdefault(wire, []).append(step)
    producers = {wire: step for step in steps for wire in step.node.outputs}
    _draw_in(steps, readers, producers, reads)
    if is_loop:
        _keep_out(steps, readers, producers)


def _draw_in(
    steps: Sequence[Step],
    readers: dict[Wire, list[Step]],
    producers: dict[Wire, Step],
    reads: Counter[Wire],
) -> None:
    """Row-wise steps that repeat a row's value, or follow what mixes, join the mixing readers."""
    drawn: set[Step] = set()
    for step in steps:
        before = [producers[wire] for wire in _mapped(step) if wire in producers]
        follows = any(other in drawn or _mixes(other) for other in before if _together(step, other))
        if _is_flat(step) and (follows or any(map(_is_repeated, step.node.inputs))):
            drawn.add(step)
    for step in reversed(steps):
        after = [reader for wire in step.node.outputs for reader in readers.get(wire, ())]
        is_private = sum(reads[wire] for wire in step.node.outputs) == len(after)
        joins = all(reader.kind == DATA and _together(step, reader) for reader in after)
        if step in drawn and after and is_private and joins:
            step.kind = DATA


def _keep_out(
    steps: Sequence[Step], readers: dict[Wire, list[Step]], producers: dict[Wire, Step]
) -> None:
    """Where an arm has both, what mixes and what is heavy become different kinds."""
    mixing = {step.node.arm for step in steps if _mixes(step)}
    heavy = {step.node.arm for step in steps if _is_heavy(step)}
    chosen = [s for s in steps if s.kind == DATA and s.node.arm in mixing & heavy]
    mixes = {step: _mixes(step) for step in chosen}
    for step in chosen:
        before = [producers[wire] for wire in step.node.inputs if wire in producers]
        if not _is_heavy(step) and any(mixes.get(other) for other in before):
            mixes[step] = True
    for step in reversed(chosen):
        after = [reader for wire in step.node.outputs for reader in readers.get(wire, ())]
        follows = any(producers.get(wire) in mixes for wire in step.node.inputs)
        joins = bool(after) and all(mixes.get(reader) for reader in after)
        if joins and not follows and not _is_heavy(step):
            mixes[step] = True
    for step in chosen:
        step.kind = MIXING if mixes[step] else DATA


def _together(step: Step, other: Step) -> bool:
    return step.node.arm == other.node.arm


def _is_flat(step: Step) -> bool:
    return step.kind is not None and step.kind.startswith("flat")


def _mixes(step: Step) -> bool:
    """Whether a step works on dynamic dimensions, and not row by row."""
    wires = (*step.node.inputs, *step.node.outputs)
    return step.kind == DATA and any(map(_is_dynamic, wires))


def _is_heavy(step: Step) -> bool:
    """Whether a step has a matrix that is the same for all rows, and no dynamic dimension."""
    weights = [w for w in step.node.inputs if w.home is Home.UNIFORM and _rank(w) >= 2]
    return step.kind == DATA and bool(weights) and not _mixes(step)


def _mapped(step: Step) -> list[Wire]:
    """The sequences that a row-wise step works on: not those that tell it a number for each vector
    of another, such as the classes in a loss.
    """
    sequences = [wire for wire in step.node.inputs if _is_dynamic(wire)]
    most = max(map(_rank, sequences), default=0)
    return [wire for wire in sequences if _rank(wire) == most]


def _is_repeated(wire: Wire) -> bool:
    """Whether a flat block would repeat the value for every element: a row's own, no number."""
    return wire.home is not Home.UNIFORM and not _is_dynamic(wire) and _rank(wire) >= 1


def _is_dynamic(wire: Wire) -> bool:
    return isinstance(wire.type, TensorType) and wire.type.is_dynamic


def _rank(wire: Wire) -> int:
    return len(wire.type.shape) if isinstance(wire.type, TensorType) else 0
