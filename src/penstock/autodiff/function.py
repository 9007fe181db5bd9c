"""One `torch.autograd.Function` per call: forward leaves a tape, backward reverses it.

The node takes the differentiable inputs and captures and gives one tensor per output and instance, so that backward can
go through some instances now and others later. With `create_graph` the call is replayed under autograd instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from penstock.autodiff.replay import replay_gradients
from penstock.autodiff.reverse import Reversal
from penstock.autodiff.tape import Tape, TapedRun
from penstock.capture.replay import call
from penstock.ir.program import Captured, TorchCall
from penstock.passes.differentiable import find_differentiable
from penstock.plan.boxes import BoxTable
from penstock.plan.slots import SequenceTable
from penstock.run.engine import Columns, Executable
from penstock.run.faults import Numbers, user_errors
from penstock.run.outputs import collect_outputs
from penstock.run.recording import CallRecorder, recorded_call


def asks_for_gradients(columns: Columns, captures: Sequence[torch.Tensor]) -> bool:
    """Whether a call must leave a tape."""
    if not torch.is_grad_enabled():
        return False
    return any(tensor.requires_grad for tensor in captures) or any(
        _requires_grad(column) for column in columns
    )


def _requires_grad(column: Sequence[torch.Tensor] | torch.Tensor) -> bool:
    if isinstance(column, torch.Tensor):
        return column.requires_grad
    return any(tensor.requires_grad for tensor in column)


@dataclass(slots=True, eq=False)
class DifferentiableCall:
    """One call that asks for gradients: what goes in, and after the forward run what backward needs."""

    executable: Executable
    columns: Columns
    captures: Sequence[torch.Tensor]
    count: int
    numbers: Numbers
    #: The tensors that ask for gradients, and where each comes from.
    tensors: list[torch.Tensor]
    places: list[Place]
    run: TapedRun | None = None
    recorder: CallRecorder | None = None
    #: For each output of the program, its rows if no gradient flows through it.
    plain: dict[int, list[torch.Tensor]] | None = None
    versions: list[tuple[torch.Tensor, int]] | None = None

    @property
    def wires(self) -> frozenset[Any]:
        """The wires through which gradients flow."""
        arguments = frozenset(p.column for p in self.places if p.column is not None)
        captured = frozenset(p.capture for p in self.places if p.capture is not None)
        known = self.executable.differentiable
        if (arguments, captured) not in known:
            graph = self.executable.graph
            known[arguments, captured] = find_differentiable(graph, arguments, captured)
        wires: frozenset[Any] = known[arguments, captured]
        return wires


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor comes from: a column (and one instance of it), or a capture."""

    column: int | None = None
    instance: int | None = None
    capture: int | None = None


def run_with_gradients(
    executable: Executable,
    columns: Columns,
    captures: Sequence[torch.Tensor],
    count: int,
    numbers: Numbers = None,
) -> list[list[torch.Tensor]]:
    """The rows of each output, connected to the inputs and captures that ask for gradients."""
    tensors, places = _find_tensors(columns, captures)
    made = DifferentiableCall(executable, columns, captures, count, numbers, tensors, places)
    with user_errors(numbers), recorded_call(executable.graph, count) as made.recorder:
        outputs = CallNode.apply(made, *tensors)
    assert made.plain is not None
    remaining = iter(outputs)
    entry = executable.linked.contexts[0].context
    return [
        made.plain[k] if k in made.plain else [next(remaining) for _ in range(count)]
        for k in range(len(entry.outputs))
    ]


def _find_tensors(
    columns: Columns, captures: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[Place]]:
    tensors: list[torch.Tensor] = []
    places: list[Place] = []
    for number, column in enumerate(columns):
        if isinstance(column, torch.Tensor):
            if column.requires_grad:
                tensors.append(column)
                places.append(Place(column=number))
            continue
        for instance, tensor in enumerate(column):
            if tensor.requires_grad:
                tensors.append(tensor)
                places.append(Place(column=number, instance=instance))
    for number, tensor in enumerate(captures):
        if tensor.requires_grad:
            tensors.append(tensor)
            places.append(Place(capture=number))
    return tensors, places


class CallNode(torch.autograd.Function):
    """The autograd node of one call."""

    @staticmethod
    def forward(ctx: Any, made: DifferentiableCall, *tensors: torch.Tensor) -> Any:
        """Run with a tape."""
        ctx.made = made
        ctx.set_materialize_grads(False)
        run = made.run = TapedRun(
            made.executable, made.captures, made.count, made.numbers, recorder=made.recorder
        )
        run.tape = Tape(made.wires)
        with torch.inference_mode(False):
            run.carry_out(made.columns)
        outputs, made.plain = _split_outputs(run, made)
        made.versions = [(tensor, tensor._version) for tensor in run.borrowed()]
        ctx.save_for_backward(torch.empty(0))  # gone once the graph is freed
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        """Reverse the tape, or, where the gradients must be differentiable themselves, replay it."""
        made: DifferentiableCall = ctx.made
        _check_versions(made)
        if torch.is_grad_enabled():
            return None, *replay_gradients(made, grads)
        try:
            may_repeat = bool(ctx.saved_tensors)
        except RuntimeError:
            may_repeat = False
        return None, *_reverse(made, grads, may_repeat)


def _check_versions(made: DifferentiableCall) -> None:
    for tensor, version in made.versions or ():
        if tensor._version != version:
            kind = f"{tensor.type()} {list(tensor.shape)}"
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{kind}] is at version {tensor._version}; "
                f"expected version {version} instead."
            )


def _split_outputs(
    run: TapedRun, made: DifferentiableCall
) -> tuple[tuple[torch.Tensor, ...], dict[int, list[torch.Tensor]]]:
    """Rows through which gradients flow, and the others by output."""
    entry = made.executable.linked.contexts[0].context
    columns = collect_outputs(run.machine, run.arenas, entry)
    flowing: list[torch.Tensor] = []
    plain: dict[int, list[torch.Tensor]] = {}
    for position, (wire, column) in enumerate(zip(entry.outputs, columns, strict=True)):
        if wire in run.tape.wires:
            flowing.extend(column.separate_rows())
        else:
            plain[position] = column.rows()
    return tuple(flowing), plain


# ---- backward ----------------------------------------------------------------------------------


def output_gradients(
    made: DifferentiableCall, grads: Sequence[torch.Tensor | None]
) -> dict[int, list[torch.Tensor | None]]:
    """The cotangents of each differentiable output, by instance."""
    assert made.plain is not None
    entry = made.executable.linked.contexts[0].context
    flowing = [k for k in range(len(entry.outputs)) if k not in made.plain]
    count = made.count
    return {k: list(grads[n * count : (n + 1) * count]) for n, k in enumerate(flowing)}


def result_slots(made: DifferentiableCall, output: int, instance: int) -> tuple[int, np.ndarray]:  # type: ignore[type-arg]
    """The arena and the slots of one output of one instance."""
    assert made.run is not None
    machine = made.run.machine
    wire = made.executable.linked.contexts[0].context.outputs[output]
    values = machine.result_slots[output]
    assert values is not None
    return value_slots(machine, wire, int(values[instance]))


def value_slots(machine: Any, wire: Any, value: int) -> tuple[int, np.ndarray]:  # type: ignore[type-arg]
    """The arena and the slots of a stored value."""
    place = machine.place(wire)
    if isinstance(place, SequenceTable):
        base, length = place.base[value], place.length[value]
        return place.space.number, np.arange(base, base + length)
    if isinstance(place, BoxTable):
        return int(place.arena[value]), np.array([place.slot[value]])
    return place.number, np.array([value])


def _reverse(
    made: DifferentiableCall, grads: Sequence[torch.Tensor | None], may_repeat: bool
) -> list[torch.Tensor | None]:
    run = made.run
    assert run is not None
    machine = run.machine
    kinds = [space.kind for space in machine.spaces]
    capacities = [space.end for space in machine.spaces]
    reversal = Reversal(run.tape, kinds, capacities, run.uniform, may_repeat)
    with torch.no_grad():
        _seed(made, reversal, grads)
        reversal.run()
        return _input_gradients(made, reversal)


def _seed(
    made: DifferentiableCall, reversal: Reversal, grads: Sequence[torch.Tensor | None]
) -> None:
    for output, rows in output_gradients(made, grads).items():
        by_arena: dict[int, list[tuple[np.ndarray, torch.Tensor]]] = {}  # type: ignore[type-arg]
        for instance, grad in enumerate(rows):
            if grad is not None:
                number, slots = result_slots(made, output, instance)
                shape = reversal.kinds[number].shape
                part = (slots, grad.reshape(len(slots), *shape))
                by_arena.setdefault(number, []).append(part)
        for number, parts in by_arena.items():
            slots = np.concatenate([slots for slots, _ in parts])
            reversal.arena(number).accumulate(slots, torch.cat([grad for _, grad in parts]))


def _input_gradients(
    made: DifferentiableCall, reversal: Reversal
) -> list[torch.Tensor | None]:
    run = made.run
    assert run is not None
    machine, graph = run.machine, made.executable.graph
    by_column: dict[int, tuple[int, Any]] = {}
    for position, entry in enumerate(graph.inputs):
        if entry.slot is None or entry.slot not in run.tape.wires:
            continue
        if entry.number is not None:
            by_column[entry.number] = (position, entry.slot)
        else:
            _add_shared(run, reversal, position, entry)
    captured = _capture_gradients(made, reversal)
    found: list[torch.Tensor | None] = []
    for tensor, place in zip(made.tensors, made.places, strict=True):
        if place.capture is not None:
            found.append(captured.get(place.capture))
        elif place.column not in by_column:
            found.append(None)
        else:
            position, wire = by_column[place.column]
            slots = machine.input_slots[position]
            assert slots is not None
            chosen = range(made.count) if place.instance is None else [place.instance]
            rows = [_gradient_of(machine, reversal, wire, int(slots[k])) for k in chosen]
            found.append(_assemble(rows, tensor))
    return found


def _gradient_of(machine: Any, reversal: Reversal, wire: Any, value: int) -> torch.Tensor | None:
    number, slots = value_slots(machine, wire, value)
    arena = reversal.arenas.get(number)
    if arena is None or not arena.present[slots].any():
        return None
    return arena.gather(slots)


def _assemble(rows: list[torch.Tensor | None], tensor: torch.Tensor) -> torch.Tensor | None:
    """The gradient of one input tensor from those of its instances; zeros for instances without."""
    if all(row is None for row in rows):
        return None
    shape = tensor.shape if len(rows) == 1 else tensor.shape[1:]
    parts = [tensor.new_zeros(shape) if row is None else row.reshape(shape) for row in rows]
    if len(rows) == 1 and parts[0].numel() == tensor.numel():
        return parts[0].reshape(tensor.shape).clone()
    return torch.stack(parts)


def _add_shared(run: TapedRun, reversal: Reversal, position: int, entry: Any) -> None:
    """The gradient of a uniform value that had one slot for all rows."""
    slots = run.machine.input_slots[position]
    assert slots is not None
    gradient = _gradient_of(run.machine, reversal, entry.slot, int(slots[0]))
    if gradient is not None:
        known = reversal.uniform_gradients.get(entry.uniform.number)
        total = gradient[0] if known is None else known + gradient[0]
        reversal.uniform_gradients[entry.uniform.number] = total


def _capture_gradients(made: DifferentiableCall, reversal: Reversal) -> dict[int, torch.Tensor]:
    """Gradients of captures from those of the uniform values computed of them."""
    found: dict[int, torch.Tensor] = {}
    derived: list[tuple[int, torch.Tensor]] = []
    assert made.run is not None
    for number, gradient in reversal.uniform_gradients.items():
        operation = made.run.uniform_nodes[number].node.operation
        if isinstance(operation, Captured):
            known = found.get(operation.index)
            found[operation.index] = gradient if known is None else known + gradient
        elif isinstance(operation, TorchCall):
            derived.append((number, gradient))
    if derived:
        leaves = {
            p.capture: made.captures[p.capture].detach().requires_grad_()
            for p in made.places
            if p.capture is not None
        }
        with torch.enable_grad():
            uniforms = UniformGraph(made, leaves)
            pairs = [(uniforms.value(number), gradient) for number, gradient in derived]
        pairs = [(output, gradient) for output, gradient in pairs if output.requires_grad]
        if not pairs:
            return found
        grads = torch.autograd.grad(
            [output for output, _ in pairs],
            list(leaves.values()),
            [gradient for _, gradient in pairs],
            allow_unused=True,
        )
        for index, gradient in zip(leaves, grads, strict=True):
            if gradient is not None:
                found[index] = found[index] + gradient if index in found else gradient
    return found


class UniformGraph:
    """Uniform values computed again under autograd, from given captures."""

    def __init__(self, made: DifferentiableCall, captures: dict[int, torch.Tensor]) -> None:
        assert made.run is not None
        self.run = made.run
        self.captures = captures
        self.values: dict[int, torch.Tensor] = {}

    def value(self, number: int) -> torch.Tensor:
        """The value of a uniform wire."""
        if number not in self.values:
            uniform = self.run.uniform_nodes[number]
            operation = uniform.node.operation
            if isinstance(operation, Captured) and operation.index in self.captures:
                self.values[number] = self.captures[operation.index]
            elif isinstance(operation, TorchCall):
                operands = [self.value(wire.number) for wire in uniform.inputs]
                self.values[number] = call(operation, operands)[uniform.output]
            else:
                self.values[number] = self.run.uniform(number)
        return self.values[number]
