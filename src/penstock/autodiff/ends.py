"""Both ends of a backward pass: cotangents of outputs go in, gradients of inputs come out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from penstock.autodiff.call import DifferentiableCall, Place, value_slots
from penstock.autodiff.gradients import add_gradients
from penstock.autodiff.reverse import Reversal
from penstock.autodiff.uniforms import capture_gradients
from penstock.ir.graph import Input, Wire
from penstock.plan.schedule import Integers


def seed_gradients(
    made: DifferentiableCall, reversal: Reversal, grads: Sequence[torch.Tensor | None]
) -> None:
    """Put the cotangents of the outputs into the slots of the results."""
    by_arena: dict[int, list[tuple[Integers, torch.Tensor]]] = {}
    for number, slots, grad in made.cotangents(grads):
        rows = grad.reshape(len(slots), *reversal.kinds[number].shape)
        by_arena.setdefault(number, []).append((slots, rows))
    for number, parts in by_arena.items():
        slots = np.concatenate([slots for slots, _ in parts])
        reversal.arena(number).accumulate(slots, torch.cat([rows for _, rows in parts]))


def input_gradients(made: DifferentiableCall, reversal: Reversal) -> list[torch.Tensor | None]:
    """The gradient of each tensor of the call; None where no cotangent has come."""
    wires: dict[int, tuple[int, Wire]] = {}
    for position, entry in enumerate(made.executable.graph.inputs):
        if entry.slot is None or entry.slot not in made.run.tape.wires:
            continue
        if entry.number is not None:
            wires[entry.number] = (position, entry.slot)
        else:
            _add_shared(made, reversal, position, entry)
    captured = capture_gradients(made, reversal.uniform_gradients)
    return [
        captured.get(place.capture)
        if place.capture is not None
        else _column_gradient(made, reversal, tensor, place, wires)
        for tensor, place in zip(made.tensors, made.places, strict=True)
    ]


def _column_gradient(
    made: DifferentiableCall,
    reversal: Reversal,
    tensor: torch.Tensor,
    place: Place,
    wires: dict[int, tuple[int, Wire]],
) -> torch.Tensor | None:
    if place.column is None or place.column not in wires:
        return None
    position, wire = wires[place.column]
    values = made.run.machine.input_slots[position]
    assert values is not None
    if place.instance is not None:
        values = values[place.instance : place.instance + 1]
    gradient = _gradient_of(made, reversal, wire, values)
    return None if gradient is None else gradient.reshape(tensor.shape).clone()


def _gradient_of(
    made: DifferentiableCall, reversal: Reversal, wire: Wire, values: Integers
) -> torch.Tensor | None:
    """The gradients of stored values, zeros for those without; None if none has one."""
    number, slots = value_slots(made.run.machine, wire, values)
    arena = reversal.arenas.get(number)
    if arena is None or not arena.present[slots].any():
        return None
    return arena.gather(slots)


def _add_shared(made: DifferentiableCall, reversal: Reversal, position: int, entry: Input) -> None:
    """The gradient of a uniform value that had one slot for all rows."""
    slots = made.run.machine.input_slots[position]
    assert slots is not None
    assert entry.slot is not None
    assert entry.uniform is not None
    gradient = _gradient_of(made, reversal, entry.slot, slots[:1])
    if gradient is not None:
        number = entry.uniform.number
        known = reversal.uniform_gradients.get(number)
        reversal.uniform_gradients[number] = add_gradients(known, gradient[0].clone())
