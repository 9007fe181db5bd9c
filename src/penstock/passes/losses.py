"""Splits the loss of a sequence: what each element loses, and what becomes of these numbers.

The first part is row-wise: with the product that made the predictions it runs over the elements of
all instances in one launch, and no prediction is written, padded or saved as it is. Only the losses
are, a number each. Classes with weights of their own count by these, and stay as they are; so do
losses of float16, whose sum may be beyond its largest number where their mean is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

from penstock.ir.program import Body, Function, Node, Operand, Program, TorchCall, Value
from penstock.ir.types import TensorType
from penstock.passes.rowwise import LOSSES

_FIRST, _SECOND = Operand(0), Operand(1)


def split_losses(program: Program) -> Program:
    """The program with losses of sequences in two steps."""
    splitting = _Splitting(count(program.highest_number + 1))
    functions = tuple(
        Function(function.name, splitting.body(function.body), function.source)
        for function in program.functions
    )
    return replace(program, functions=functions)


@dataclass(frozen=True, slots=True)
class _Splitting:
    """One pass over a program."""

    numbers: Iterator[int]

    def body(self, body: Body) -> Body:
        """A body with its losses split."""
        nodes: list[Node] = []
        for node in body.nodes:
            made = node.with_bodies(map(self.body, node.bodies))
            nodes.extend(self._split(made) if _is_split(made) else (made,))
        return replace(body, nodes=tuple(nodes))

    def _split(self, node: Node) -> Iterator[Node]:
        call, classes, loss = node.operation, node.inputs[1], node.outputs[0]
        assert isinstance(call, TorchCall)
        assert isinstance(loss.type, TensorType)
        assert isinstance(classes.type, TensorType)
        options = dict(call.kwargs)
        apart = replace(call, kwargs=(*{**options, "reduction": "none"}.items(),))
        losses = self._value(replace(loss.type, shape=classes.type.shape))
        yield replace(node, operation=apart, outputs=(losses,))
        total = TorchCall("torch.Tensor.sum", (_FIRST,))
        if options.get("reduction") == "sum":
            yield replace(node, operation=total, inputs=(losses,))
            return
        summed = self._value(loss.type)
        yield replace(node, operation=total, inputs=(losses,), outputs=(summed,))
        counts = self._value(replace(classes.type, dtype="bool"))
        unlike = TorchCall("torch.Tensor.ne", (_FIRST, options.get("ignore_index", -100)))
        yield replace(node, operation=unlike, inputs=(classes,), outputs=(counts,))
        number = self._value(replace(classes.type, shape=()))
        yield replace(node, operation=total, inputs=(counts,), outputs=(number,))
        mean = TorchCall("torch.Tensor.true_divide", (_FIRST, _SECOND))
        yield replace(node, operation=mean, inputs=(summed, number))

    def _value(self, kind: TensorType) -> Value:
        return Value(next(self.numbers), kind)


def _is_split(node: Node) -> bool:
    """Whether a node is the mean or the sum of what the elements of a sequence lose, all alike."""
    call = node.operation
    if not isinstance(call, TorchCall) or call.name.rsplit(".", 1)[-1] not in LOSSES:
        return False
    options = dict(call.kwargs)
    if any(options.get(name) is not None for name in ("weight", "size_average", "reduce")):
        return False
    if call.args != (_FIRST, _SECOND) or options.get("reduction", "mean") == "none":
        return False
    given, classes = (value.type for value in node.inputs)
    return (
        isinstance(given, TensorType)
        and isinstance(classes, TensorType)
        and given.is_sequence
        and len(given.shape) == 2
        and given.dtype != "float16"
        and classes == replace(given, dtype="int64", shape=given.shape[:1])
    )
