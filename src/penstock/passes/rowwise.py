"""Which torch calls work element by element along a dynamic leading dimension.

Such a call on sequences gives, for element i of the result, what it gives for elements i of its operands. A block of
such calls runs over all elements of all instances in one launch. The table is closed: a call that is not in it mixes.
"""

from __future__ import annotations

from penstock.ir.program import Node, Operand, TorchCall, Value
from penstock.ir.types import TensorType

#: Elementwise calls: broadcasting aligns trailing dimensions, so operands of lower rank are the same for all elements.
_POINTWISE = frozenset(
    """abs add addcdiv addcmul bitwise_and bitwise_not bitwise_or bitwise_xor bool ceil celu clamp clip clone
    contiguous cos cosh detach div double elu eq erf exp expm1 float floor floor_divide ge gelu gt hardswish
    hardtanh int isfinite isinf isnan le leaky_relu lerp log log1p log2 logical_and logical_not logical_or
    logical_xor logsigmoid long lt masked_fill maximum minimum mish mul multiply ne neg nan_to_num pow
    reciprocal relu relu6 remainder round rsqrt rsub selu sigmoid sign silu sin sinh softplus softsign sqrt
    square sub subtract tan tanh true_divide trunc type where zeros_like ones_like half bfloat16
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __mod__ __neg__
    __pow__ __rpow__ __and__ __or__ __xor__ __invert__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __abs__""".split()
)

#: Calls on the last dimension only, whose first operand is the sequence and the others are the same for all elements.
_LAST_DIMENSION = frozenset(["linear", "embedding", "layer_norm", "matmul", "__matmul__", "mm"])


def flat_symbol(node: Node) -> str | None:
    """The symbol along which this call is row-wise, or None if it mixes or has no sequence."""
    call = node.operation
    if not isinstance(call, TorchCall) or call.sizes or not node.outputs:
        return None
    kinds = [value.type for value in node.inputs]
    if not all(isinstance(kind, TensorType) for kind in kinds):
        return None
    symbol = _leading_symbol(node.outputs)
    if symbol is None or symbol != _leading_symbol([v for v in node.inputs if _is_sequence(v)]):
        return None
    name = call.name.rsplit(".", 1)[-1]
    rank = len(node.outputs[0].type.shape)  # type: ignore[union-attr]
    if name in _POINTWISE:
        return symbol if all(_broadcasts(value, symbol, rank) for value in node.inputs) else None
    if name in _LAST_DIMENSION:
        return symbol if _maps_first_operand(node, call, name, symbol) else None
    return None


def _leading_symbol(values: tuple[Value, ...] | list[Value]) -> str | None:
    symbols = {value.type.shape[0] if _is_sequence(value) else None for value in values}  # type: ignore[union-attr]
    only = symbols.pop() if len(symbols) == 1 else None
    return only if isinstance(only, str) else None


def _is_sequence(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.is_sequence


def _broadcasts(value: Value, symbol: str, rank: int) -> bool:
    """A sequence of full rank, or a tensor that broadcasts over its elements."""
    shape = value.type.shape  # type: ignore[union-attr]
    if _is_sequence(value):
        return shape[0] == symbol and len(shape) == rank
    return len(shape) < rank


def _maps_first_operand(node: Node, call: TorchCall, name: str, symbol: str) -> bool:
    first = call.args[:1]
    if name == "embedding":  # called as embedding(input, weight) or torch.embedding(weight, input)
        first = tuple(arg for arg in call.args[:2] if isinstance(arg, Operand) and _is_sequence(node.inputs[arg.index]))
    if not first or not isinstance(first[0], Operand):
        return False
    sequence = node.inputs[first[0].index]
    others = [value for value in node.inputs if value is not sequence]
    is_first = _is_sequence(sequence) and sequence.type.shape[0] == symbol  # type: ignore[union-attr]
    if name in ("matmul", "__matmul__", "mm") and len(sequence.type.shape) < 2:  # type: ignore[union-attr]
        return False
    if name == "layer_norm" and not _normalises_inside(call, sequence):
        return False
    return is_first and not any(_is_sequence(other) for other in others)


def _normalises_inside(call: TorchCall, sequence: Value) -> bool:
    shape = call.args[1] if len(call.args) > 1 else dict(call.kwargs).get("normalized_shape")
    return isinstance(shape, tuple | list) and len(shape) < len(sequence.type.shape)  # type: ignore[union-attr]
