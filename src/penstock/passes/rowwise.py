"""Which torch calls work element by element along a dynamic leading dimension.

Such a call on sequences gives, for element i of the result, what it gives for elements i of its
operands. A block of such calls runs over all elements of all instances in one launch. The table is
closed: a call that is not in it mixes.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.ir.program import Node, Operand, TorchCall, Value
from penstock.ir.types import TensorType

#: Elementwise calls: broadcasting aligns trailing dimensions, so operands of lower rank are the
#: same for all elements.
POINTWISE = frozenset(
    """
    abs add addcdiv addcmul bfloat16 bitwise_and bitwise_not bitwise_or bitwise_xor bool ceil celu
    clamp clip clone contiguous cos cosh detach div double elu eq erf exp expm1 float floor
    floor_divide ge gelu gt half hardswish hardtanh int isfinite isinf isnan le leaky_relu lerp log
    log1p log2 logical_and logical_not logical_or logical_xor logsigmoid long lt masked_fill maximum
    minimum mish mul multiply nan_to_num ne neg ones_like pow reciprocal relu relu6 remainder round
    rsqrt rsub selu sigmoid sign silu sin sinh softplus softsign sqrt square sub subtract tan tanh
    true_divide trunc type where zeros_like
    __abs__ __add__ __and__ __eq__ __floordiv__ __ge__ __gt__ __invert__ __le__ __lt__ __mod__
    __mul__ __ne__ __neg__ __or__ __pow__ __radd__ __rmul__ __rpow__ __rsub__ __rtruediv__ __sub__
    __truediv__ __xor__
    """.split()  # noqa: SIM905 - a table of words
)

#: Products of a sequence with a matrix or a vector that is the same for all elements.
PRODUCTS = frozenset(["matmul", "__matmul__", "mm"])

#: Calls on the last dimensions alone, whose first operand is the sequence; the others are the same
#: for all elements.
LAST_DIMENSIONS = PRODUCTS | {"linear", "embedding", "layer_norm"}

#: Losses of elements, which are told what is expected of each.
LOSSES = frozenset(["cross_entropy", "nll_loss"])


def flat_symbol(node: Node) -> str | None:
    """The symbol along which this call is row-wise, or None if it mixes or has no sequence."""
    call = node.operation
    if not isinstance(call, TorchCall) or call.sizes or not node.outputs:
        return None
    sequences = [value for value in node.inputs if _is_sequence(value)]
    symbol = _leading_symbol(node.outputs)
    if symbol is None or symbol != _leading_symbol(sequences):
        return None
    name = call.name.rsplit(".", 1)[-1]
    if name in POINTWISE:
        rank = len(_shape(node.outputs[0]))
        return symbol if all(_broadcasts(value, symbol, rank) for value in node.inputs) else None
    if name in LAST_DIMENSIONS:
        return symbol if _maps_its_sequence(node, call, name) else None
    return symbol if _is_loss(node) else None


def _is_loss(node: Node) -> bool:
    """Whether a call tells for each element of a sequence how far it is from what is expected."""
    call = node.operation
    if not isinstance(call, TorchCall) or call.name.rsplit(".", 1)[-1] not in LOSSES:
        return False
    others = node.inputs[2:]
    return dict(call.kwargs).get("reduction") == "none" and not any(map(_is_sequence, others))


def _shape(value: Value) -> tuple[int | str, ...]:
    return value.type.shape if isinstance(value.type, TensorType) else ()


def _is_sequence(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.is_sequence


def _leading_symbol(values: Sequence[Value]) -> str | None:
    """The leading dimension of all these values, if they are sequences and agree."""
    symbols = {_shape(value)[0] if _is_sequence(value) else None for value in values}
    only = symbols.pop() if len(symbols) == 1 else None
    return only if isinstance(only, str) else None


def _broadcasts(value: Value, symbol: str, rank: int) -> bool:
    """A sequence of full rank, or a tensor that broadcasts over its elements."""
    if not isinstance(value.type, TensorType):
        return False
    shape = value.type.shape
    if value.type.is_sequence:
        return shape[0] == symbol and len(shape) == rank
    return len(shape) < rank


def _maps_its_sequence(node: Node, call: TorchCall, name: str) -> bool:
    """Whether the call has one sequence, in its place, and works on last dimensions only."""
    sequence = _sequence_operand(node, call, name)
    if sequence is None:
        return False
    others = [value for value in node.inputs if value is not sequence]
    if any(_is_sequence(other) for other in others):
        return False
    if name in PRODUCTS:
        return len(_shape(sequence)) >= 2 and all(len(_shape(other)) <= 2 for other in others)
    return name != "layer_norm" or _normalises_inside(call, sequence)


def _sequence_operand(node: Node, call: TorchCall, name: str) -> Value | None:
    # embedding(input, weight), but torch.embedding(weight, input)
    places = call.args[:2] if name == "embedding" else call.args[:1]
    operands = [node.inputs[place.index] for place in places if isinstance(place, Operand)]
    return next((value for value in operands if _is_sequence(value)), None)


def _normalises_inside(call: TorchCall, sequence: Value) -> bool:
    shape = call.args[1] if len(call.args) > 1 else dict(call.kwargs).get("normalized_shape")
    return isinstance(shape, tuple | list) and len(shape) < len(_shape(sequence))
