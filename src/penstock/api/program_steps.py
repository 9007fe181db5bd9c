"""Calls of programs with control flow, recorded in eager code as one step each.

All calls of one program that are ready together run as one map, and gradients flow through it.
Programs that draw random numbers, or whose outputs have shapes that depend on contents, are not
recorded so: their Python functions run, and their torch calls are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from penstock.api.batches import Batch
from penstock.api.entries import Entry
from penstock.api.instances import naming_assertions
from penstock.autodiff.function import asks_for_gradients, run_with_gradients
from penstock.calls.autocast import current_autocast
from penstock.capture.lazy.active_calls import paused
from penstock.capture.lazy.guarded_values import PLAIN_TENSORS
from penstock.capture.lazy.kinds import LazyKind, intern
from penstock.capture.lazy.library import Leaf, Step, Uniform, library
from penstock.capture.lazy.scope import Scope
from penstock.capture.lazy.step_blocks import taken_operands
from penstock.capture.lazy.unit_tracing import without_recording
from penstock.capture.source import user_source
from penstock.capture.worlds import dtype_called
from penstock.ir.program import Source
from penstock.ir.types import TensorType
from penstock.passes.differentiable import find_differentiable
from penstock.plan.step_kinds import StepKind
from penstock.run.batched import BlockInput
from penstock.run.blocks import Failure
from penstock.run.executable import Executable
from penstock.run.step_blocks import OpaqueBlock

#: Steps kept per program.
MOST_STEPS = 256

#: From an instance to its program, and from that to what runs it.
FindEntry = Callable[[], Entry]
Compile = Callable[[Entry], Executable]


def record_program(
    scope: Scope, batch: Batch, find: FindEntry, compile_entry: Compile
) -> tuple[bool, Any]:
    """Record a call as one step, if its program can be one; else (False, None)."""
    with paused(), without_recording():
        entry = find()
        executable = compile_entry(entry)
    types = _output_types(entry, batch)
    captures = [capture.fetch() for capture in entry.traced.captures]
    is_plain = all(type(tensor) in PLAIN_TENSORS for tensor in captures)
    if not types or executable.graph.has_random or not is_plain:
        return False, None
    with torch._C.DisableTorchFunction():
        rows = [scope.row(column.values[0]) for column in batch.inputs]
        operands = [*rows, *map(library.uniform, captures)]
        step = _step(entry, executable, operands, types)
        for tensor in captures:
            scope.hold(tensor)
        made = scope.add(step, operands, [row._value for row in rows])
    return True, entry.traced.rebuild(made)


def _output_types(entry: Entry, batch: Batch) -> list[TensorType]:
    """The types of the outputs for arguments of these shapes; none where they are not known."""
    sizes: dict[str, int] = {}
    for value, column in zip(entry.program.entry.body.inputs, batch.inputs, strict=True):
        if isinstance(value.type, TensorType):
            named = zip(value.type.shape, column.shapes[0], strict=True)
            sizes.update({name: size for name, size in named if isinstance(name, str)})
    found = []
    for output in entry.program.entry.body.outputs:
        kind = output.type
        if not isinstance(kind, TensorType):
            return []
        shape = tuple(sizes.get(size) if isinstance(size, str) else size for size in kind.shape)
        if None in shape:
            return []
        found.append(TensorType(kind.dtype, shape, kind.device))  # type: ignore[arg-type]
    return found


def _step(
    entry: Entry, executable: Executable, operands: Sequence[Any], types: Sequence[TensorType]
) -> Step:
    """The step of a program for operands of these kinds."""
    kinds = tuple(item if isinstance(item, Uniform) else item._kind for item in operands)
    key = (library.generation, kinds, torch.is_grad_enabled(), current_autocast())
    step: Step | None = entry.steps.get(key)
    if step is None:
        if len(entry.steps) >= MOST_STEPS:
            entry.steps.clear()
        step = entry.steps[key] = _learn(entry, executable, operands, types)
    return step


def _learn(
    entry: Entry, executable: Executable, operands: Sequence[Any], types: Sequence[TensorType]
) -> Step:
    asking = [k for k, operand in enumerate(operands) if _kind(operand).requires_grad]
    flows_out = _flowing_outputs(executable, operands, asking) if torch.is_grad_enabled() else []
    kinds = [_result_kind(kind, k in flows_out) for k, kind in enumerate(types)]
    inputs = [_block_input(operand) for operand in operands]
    source = user_source()
    block = ProgramBlock(entry, executable, inputs, types, asking, flows_out, source)
    stored = tuple(kind.stored for kind in kinds)
    with library.lock:
        taken = taken_operands(operands)
        number = library.add_kind(StepKind(block.name, taken, stored, library.add_block(block)))
    leaves = tuple(Leaf(kind, k) for k, kind in enumerate(kinds))
    return Step(number, len(kinds), None, build=list, leaves=leaves, name=block.name, source=source)


def _kind(operand: Any) -> LazyKind:
    kind: LazyKind = operand.kind if isinstance(operand, Uniform) else operand._kind
    return kind


def _result_kind(kind: TensorType, requires_grad: bool) -> LazyKind:
    shape = torch.Size(kind.shape)  # type: ignore[arg-type]
    stride = torch.empty(shape, device="meta").stride()
    dtype, device = dtype_called(kind.dtype), torch.device(kind.device)
    return intern(dtype, shape, stride, device, requires_grad)


def _block_input(operand: Any) -> BlockInput:
    kind = _kind(operand).type
    home = "uniform" if isinstance(operand, Uniform) else "row"
    return BlockInput(home, kind.dtype, kind.shape, None, kind.device)


def _flowing_outputs(
    executable: Executable, operands: Sequence[Any], asking: Sequence[int]
) -> list[int]:
    """The outputs that gradients flow through, if these operands ask for them."""
    columns = sum(not isinstance(operand, Uniform) for operand in operands)
    arguments = frozenset(k for k in asking if k < columns)
    captures = frozenset(k - columns for k in asking if k >= columns)
    wires = find_differentiable(executable.graph, arguments, captures)
    outputs = executable.linked.contexts[0].context.outputs
    return [k for k, wire in enumerate(outputs) if wire in wires]


class ProgramBlock(OpaqueBlock):
    """A block that runs a program for all rows of a launch."""

    def __init__(
        self,
        entry: Entry,
        executable: Executable,
        inputs: Sequence[BlockInput],
        outputs: Sequence[TensorType],
        flows_in: Sequence[int],
        flows_out: Sequence[int],
        source: Source | None,
    ) -> None:
        super().__init__(
            entry.program.entry.name,
            self._run_program,
            inputs,
            outputs,
            is_batched=True,
            flows_in=flows_in,
            flows_out=flows_out,
            source=source,
            autocast=current_autocast(),
        )
        self._executable = executable
        self._assertions = entry.traced.assertions
        self._columns = sum(spec.kind == "row" for spec in inputs)

    def _run_program(self, rows: int, *arguments: torch.Tensor) -> list[torch.Tensor]:
        columns, captures = arguments[: self._columns], arguments[self._columns :]
        with naming_assertions(self._assertions):
            if asks_for_gradients(columns, captures):
                found: list[Any] = run_with_gradients(
                    self._executable, columns, captures, rows, is_joined=True
                )
                return [torch.stack(item) if isinstance(item, list) else item for item in found]
            made = self._executable.run(columns, captures, rows)
            return [column.stacked() for column in made]

    def failure(self, arguments: Sequence[torch.Tensor | int]) -> Failure | None:
        """The line of the call, if the program fails for one row, and how."""
        pairs = zip(self.inputs, arguments, strict=True)
        row = [
            item.unsqueeze(0) if spec.kind == "row" and isinstance(item, torch.Tensor) else item
            for spec, item in pairs
        ]
        try:
            with torch.no_grad():
                self.call(1, *row)
        except Exception as error:
            return Failure(self.node.source, error)
        return None
