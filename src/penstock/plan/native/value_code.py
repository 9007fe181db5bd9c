"""Code that finds values for rows and computes others: columns, inputs, host operations, elements.

Values are registers. Only integers and truth values are planned with; what else there is on the
host is left to the plain machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ir.graph import Compute, Home, Primitive, Wire
from penstock.ir.types import TensorType
from penstock.plan.host_code import dtype_of
from penstock.plan.linked import Access, LinkedNode
from penstock.plan.native import opcodes as op
from penstock.plan.native.code_writer import CodeWriter
from penstock.plan.native.host_steps import emit_host_step, literal_kind
from penstock.plan.native.program import NotNative

#: Values of an event, as registers; None for a node that was queued.
Fields = Sequence[int] | None


class ValueCode(CodeWriter):
    """Code for the values of nodes."""

    def _fetch_all(self, node: LinkedNode, rows: int, fields: Fields) -> list[int]:
        return [self._fetch(node, k, rows, fields) for k in range(len(node.access))]

    def _fetch(self, node: LinkedNode, position: int, rows: int, fields: Fields) -> int:
        access = node.access[position]
        if fields is not None and access.field is not None:
            return fields[access.field]
        return self._look_up(node.context, access, rows)

    def _look_up(self, context: int, access: Access, rows: int) -> int:
        if access.input is not None:
            kind = self.linked.graph.inputs[access.input].type
            assert isinstance(kind, TensorType)
            if access.is_host and kind.dtype not in ("int64", "bool"):
                raise NotNative("floats on the host")
            number = 2 * access.input + access.is_host
            return self._do(op.INPUT, rows, number, results=1)
        for _ in access.above:
            rows = self._column(rows, op.PARENT)
        return self._column(rows, self.layout.column(context, access))

    def _compute(
        self, node: LinkedNode, operation: Compute, rows: int, fields: Fields
    ) -> list[int]:
        values = dict(zip(node.node.inputs, self._fetch_all(node, rows, fields), strict=True))
        for step in operation.steps:
            values[step.output] = self._step(step.name, step.operands, rows, values, step.output)
        # a result that no row decides is still one for each row
        return [
            self._host(rows, op.COPY, values[wire])
            if values[wire] < op.ROWS_REGISTER
            else values[wire]
            for wire in node.node.outputs
        ]

    def _step(
        self,
        name: str,
        operands: Sequence[Wire | int | float | bool],
        rows: int,
        values: dict[Wire, int],
        output: Wire,
    ) -> int:
        if dtype_of(output) not in ("int64", "bool"):
            raise NotNative("floats on the host")
        if name == "constant":
            literal_kind(operands[0])
            return self._constant(operands[0])  # type: ignore[arg-type]
        if name in ("read_table", "table_length"):
            taken = [values[item] if isinstance(item, Wire) else item for item in operands]
            number = op.READ_TABLE if name == "read_table" else op.TABLE_LENGTH
            if name == "read_table" and not isinstance(operands[1], Wire):
                taken[1] = self._constant(operands[1])  # type: ignore[arg-type]
            return self._do(number, rows, *taken, results=1)  # type: ignore[arg-type]
        typed = [
            (values[item], dtype_of(item), False)
            if isinstance(item, Wire)
            else (self._constant(item), literal_kind(item), True)  # type: ignore[arg-type]
            for item in operands
        ]
        return emit_host_step(
            name, typed, self.linked.default_dtype, lambda *words: self._host(rows, *words)
        )

    def _host(self, rows: int, number: int, *operands: int) -> int:
        return self._do(op.HOST, rows, number, *operands, results=1)

    def _primitive(self, node: LinkedNode, operation: Primitive, rows: int, fields: Fields) -> int:
        values = self._fetch_all(node, rows, fields)
        if operation.name.startswith("Array"):
            return self._array_operation(node, operation, rows, values)
        kind = node.node.inputs[0].type
        if not isinstance(kind, TensorType) or not kind.is_sequence:
            raise NotNative(f"{operation.name} of what is no sequence")
        if operation.name == "Element":
            return self._do(op.ELEMENT, rows, *values, results=1)
        if operation.name == "Size" and operation.dimension == 0:
            return self._length(node.node.inputs[0], rows, values[0])
        raise NotNative(operation.name)

    def _array_operation(
        self, node: LinkedNode, operation: Primitive, rows: int, values: Sequence[int]
    ) -> int:
        made = node.node.outputs[0]
        match operation.name:
            case "ArraySize":
                return self._do(op.LENGTH, rows, *values, results=1)
            case "ArrayRead":
                return self._do(op.ARRAY_READ, rows, *values, results=1)
            case "ArrayWrite":
                return self._do(op.ARRAY_WRITE, rows, *values, int(node.is_last_use), results=1)
            case "ArrayNew":
                more = self.layout.place(made)[0], int(operation.dynamic_size)
                return self._do(op.ARRAY_NEW, rows, *values, *more, results=1)
            case "ArrayStack" | "ArrayUnstack":
                number = op.ARRAY_STACK if operation.name == "ArrayStack" else op.ARRAY_UNSTACK
                arena = self.layout.place(made)[0]
                return self._do(number, rows, *values, arena, results=1)
            case _:
                raise NotNative(operation.name)

    def _length(self, wire: Wire, rows: int, values: int) -> int:
        name = op.TABLE_LENGTH if wire.home is Home.HOST else op.LENGTH
        return self._do(name, rows, values, results=1)
