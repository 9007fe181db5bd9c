"""Compiles fused host operations to one Python function of numpy expressions.

The function takes the row count, the tables of the run and one array per input wire, and returns
one array per output wire. Tables are per-instance arrays of integers; a table wire holds the
table's number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.ir.graph import HostStep, Wire
from penstock.ir.types import TensorType
from penstock.plan.host import HOST_OPS
from penstock.plan.host_kernels import NAMESPACE, read_table
from penstock.plan.host_operation import Operand, emit
from penstock.plan.schedule import Array, Integers


@dataclass(slots=True)
class Tables:
    """The per-instance integer tables of one run, by dtype in one flat array."""

    flat: dict[str, Array] = field(default_factory=dict)
    base: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    length: Integers = field(default_factory=lambda: np.empty(0, np.int64))

    def read(self, dtype: str, numbers: Integers, index: Integers) -> Array:
        """Elements of tables, with torch's rule for negative indices."""
        values: Array = read_table(
            self.flat[dtype], self.base[numbers], self.length[numbers], index
        )
        return values


#: The file name of compiled functions in tracebacks.
_FILE = "<penstock host>"

HostFunction = Callable[..., tuple[Array, ...]]


def compile_steps(
    steps: Sequence[HostStep],
    inputs: Sequence[Wire],
    outputs: Sequence[Wire],
    default_dtype: str,
) -> HostFunction:
    """The function of a Compute node."""
    names = {wire: f"w{wire.number}" for wire in inputs}
    varying = set(inputs)
    namespace: dict[str, Any] = {**NAMESPACE, "full": np.full}
    lines = []
    for step in steps:
        expression = _expression(step, names, namespace, default_dtype)
        names[step.output] = f"w{step.output.number}"
        lines.append(f"{names[step.output]} = {expression}")
        if any(operand in varying for operand in step.operands if isinstance(operand, Wire)):
            varying.add(step.output)
    results = [names[wire] if wire in varying else f"full(n, {names[wire]})" for wire in outputs]
    parameters = ", ".join(["n", "tables", *(names[wire] for wire in inputs)])
    body = "\n    ".join([*lines, f"return ({''.join(f'{result}, ' for result in results)})"])
    source = f"def compute({parameters}):\n    {body}"
    exec(compile(source, _FILE, "exec"), namespace)
    function: HostFunction = namespace["compute"]
    return function


def failing_step(error: Exception) -> int | None:
    """Which step of a compiled function raised: each has a line of its own, after the first."""
    found, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE:
            found = trace.tb_lineno - 2
        trace = trace.tb_next
    return found


def _expression(
    step: HostStep, names: dict[Wire, str], namespace: dict[str, Any], default_dtype: str
) -> str:
    dtype = dtype_of(step.output)
    operands = [names[item] if isinstance(item, Wire) else item for item in step.operands]
    match step.name:
        case "constant":
            name = f"constant_{step.output.number}"
            namespace[name] = np.asarray(step.operands[0], dtype)
            return name
        case "read_table":
            return f"tables.read({dtype!r}, {operands[0]}, {operands[1]})"
        case "table_length":
            return f"tables.length[{operands[0]}]"
        case name:
            typed = [
                Operand(names[item], dtype_of(item)) if isinstance(item, Wire) else item
                for item in step.operands
            ]
            emitted = emit(HOST_OPS[name], typed, default_dtype)
            assert emitted is not None, f"{name} was sliced as a host operation"
            namespace.update(emitted.constants)
            return emitted.source


def dtype_of(wire: Wire) -> str:
    """The dtype of a wire's tensor."""
    assert isinstance(wire.type, TensorType)
    return wire.type.dtype
