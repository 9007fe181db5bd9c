"""From graphs of the same code at several sizes to one straight line that holds for every size.

The graphs are walked in step. An integer that differs between them becomes a polynomial of the
sizes; a float that differs must be such a polynomial or its inverse. Graphs that differ in any
other way have no common form. Works for any function, batched or not, forward or joint with its
backward: it sees only graphs and the points they were traced at.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from penstock.run.batched.decompose import Unbatchable
from penstock.run.batched.functorch_adapter import operator_name
from penstock.run.batched.sizes import Point, Polynomial, Size, fit
from penstock.run.batched.steps import Fact, Step, StraightLine, TensorFact


@dataclass(frozen=True, slots=True)
class Inverse:
    """The float 1 / size."""

    size: Polynomial

    def __str__(self) -> str:
        return f"1.0 / ({self.size})"


@dataclass(frozen=True, slots=True)
class AsFloat:
    """A size as a float."""

    size: Polynomial

    def __str__(self) -> str:
        return f"float({self.size})"


class SizeDependent(Unbatchable):
    """The graphs differ in a way that no polynomial of the sizes explains."""


def lift(graphs: Sequence[torch.fx.GraphModule], points: Sequence[Point]) -> StraightLine:
    """One straight line for all sizes, from graphs traced at `points` (see `sizes.fit` for their
    order).
    """
    columns = [list(graph.graph.nodes) for graph in graphs]
    if len({len(column) for column in columns}) > 1:
        raise SizeDependent("the number of steps depends on a size", _growing_operations(graphs))
    return _Lift(graphs, points).run(list(zip(*columns, strict=True)))


class _Lift:
    """The walk: nodes of the first graph stand for their counterparts in the others."""

    def __init__(self, graphs: Sequence[torch.fx.GraphModule], points: Sequence[Point]) -> None:
        self.graphs = graphs
        self.points = points
        #: What each node of the first graph became: a step, or a number that vmap had wrapped in a
        #: tensor.
        self.steps: dict[torch.fx.Node, Step | float] = {}

    def run(self, rows: Sequence[tuple[torch.fx.Node, ...]]) -> StraightLine:
        inputs: list[Step] = []
        steps: list[Step] = []
        outputs: Sequence[Step] = ()
        for nodes in rows:
            if len({(node.op, node.target) for node in nodes if node.op != "get_attr"}) > 1:
                raise SizeDependent(f"different steps at different sizes: {nodes[0].target}")
            if nodes[0].op == "output":
                outputs = self.common([node.args[0] for node in nodes])
                continue
            if _wraps_number(nodes[0]):
                number = self.common([node.args[0] for node in nodes])
                self.steps[nodes[0]] = number.conjugate() if _conjugates(nodes[0]) else number
                continue
            step = self.steps[nodes[0]] = self.step(nodes)
            (inputs if nodes[0].op == "placeholder" else steps).append(step)
        return StraightLine(tuple(inputs), tuple(steps), tuple(outputs))

    def step(self, nodes: Sequence[torch.fx.Node]) -> Step:
        if nodes[0].op == "placeholder":
            return Step(None, (), {}, self.fact([node.meta.get("val") for node in nodes]))
        if nodes[0].op == "get_attr":
            return self.constant(nodes)
        args = self.common([node.args for node in nodes])
        kwargs = self.common([dict(node.kwargs) for node in nodes])
        fact = self.fact([node.meta.get("val") for node in nodes])
        if not nodes[0].all_input_nodes and isinstance(fact, TensorFact):
            kwargs = {**kwargs, "dtype": fact.dtype}
        return Step(nodes[0].target, args, kwargs, fact)

    def constant(self, nodes: Sequence[torch.fx.Node]) -> Step:
        values = [
            getattr(graph, str(node.target)) for graph, node in zip(self.graphs, nodes, strict=True)
        ]
        first = values[0]
        if any(value is not first and not _same_tensor(value, first) for value in values):
            raise SizeDependent("a constant depends on a size")
        fact = TensorFact(tuple(first.shape), first.dtype, first.device)
        return Step(None, (), {}, fact, constant=first, is_literal=_is_literal(nodes[0]))

    def fact(self, values: Sequence[Any]) -> Fact:
        first = values[0]
        if isinstance(first, torch.Tensor):
            shape = tuple(
                self.size([value.shape[i] for value in values]) for i in range(first.dim())
            )
            return TensorFact(shape, first.dtype, first.device)
        if isinstance(first, (list, tuple)):
            return tuple(self.fact(items) for items in zip(*values, strict=True))
        return None

    def common(self, values: Sequence[Any]) -> Any:
        """What these arguments are at every size."""
        first = values[0]
        if isinstance(first, torch.fx.Node):
            return self.steps[first]
        if isinstance(first, dict):
            return {key: self.common([value[key] for value in values]) for key in first}
        if isinstance(first, (list, tuple)):
            if len({len(value) for value in values}) > 1:
                raise SizeDependent("a list of arguments grows with a size")
            items = [self.common(items) for items in zip(*values, strict=True)]
            return items if isinstance(first, list) else tuple(items)
        if isinstance(first, bool) or all(_same(value, first) for value in values):
            return self.equal(values)
        if isinstance(first, int):
            return self.size(values)
        if isinstance(first, float):
            return self.number(values)
        raise SizeDependent(f"{first!r} depends on a size")

    def equal(self, values: Sequence[Any]) -> Any:
        if not all(_same(value, values[0]) for value in values):
            raise SizeDependent(f"{values[0]!r} depends on a size")
        return values[0]

    def size(self, values: Sequence[int]) -> Size:
        size = fit(values, self.points)
        if size is None:
            raise SizeDependent(f"a size is no polynomial: {', '.join(map(str, values))}")
        return size

    def number(self, values: Sequence[float]) -> Inverse | AsFloat:
        for form, numbers in (
            (AsFloat, values),
            (Inverse, [1.0 / v if v else 0.5 for v in values]),
        ):
            if all(abs(number - round(number)) < 1e-9 * abs(number) for number in numbers):
                size = fit([round(number) for number in numbers], self.points)
                if isinstance(size, Polynomial):
                    return form(size)
        raise SizeDependent(f"a number depends on a size: {', '.join(map(str, values))}")


def _same(left: Any, right: Any) -> bool:
    return bool(left == right) or (left != left and right != right)


def _is_literal(node: torch.fx.Node) -> bool:
    """Whether a constant comes from `torch.tensor(...)` and not from outside."""
    return all(user.target is torch.ops.aten.lift_fresh_copy.default for user in node.users)


def _wraps_number(node: torch.fx.Node) -> bool:
    """vmap casts the number in `x * 3` where x is 0-d; the number itself means the same. The
    gradient of a product with a complex number has its conjugate.
    """
    is_cast = node.target is torch.ops.aten._to_copy.default or _conjugates(node)
    return is_cast and not node.all_input_nodes


def _conjugates(node: torch.fx.Node) -> bool:
    return node.target is torch.ops.aten._conj.default


def _same_tensor(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype and torch.equal(left, right)


def _growing_operations(graphs: Sequence[torch.fx.GraphModule]) -> list[str]:
    """The operations of which some graphs have more than others, leaving out those that only pick
    and join.
    """
    plain = {"select", "stack", "cat", "permute", "getitem", "unsqueeze", "view", "expand", "clone"}
    counts = [Counter(map(_target_name, graph.graph.nodes)) for graph in graphs]
    names = dict.fromkeys(name for count in counts for name in count)
    grown = [name for name in names if len({count[name] for count in counts}) > 1]
    return [name for name in grown if name not in plain] or grown


def _target_name(node: torch.fx.Node) -> str:
    if isinstance(node.target, torch._ops.OpOverload):
        return operator_name(node.target)
    return "getitem" if node.target is operator.getitem else str(node.target)
