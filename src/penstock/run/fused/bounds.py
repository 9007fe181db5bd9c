"""Looks at indices before compiled code for a CPU uses them.

Compiled code that meets an index out of range ends the process: it cannot raise out of a parallel
loop. So indices that come from data go through an operator that raises; what fails there is left to
the plain way, which tells whose fault it is. Slots are in range by plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten

#: Operators that take (source, dimension, index), whose index counts from 0.
_ALONG = (
    aten.gather.default,
    aten.scatter.src,
    aten.scatter.value,
    aten.scatter.reduce,
    aten.scatter.value_reduce,
    aten.scatter_add.default,
    aten.scatter_reduce.two,
)
#: Operators that take (source, indices), one for each dimension, which may count from the end.
_AT = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)


class _Use(NamedTuple):
    """Places that are read or written: in which dimension of what, and whether they may be
    negative.
    """

    source: Node
    dimension: int
    places: Node
    may_be_negative: bool


def check_indices(graph: GraphModule, slots: Collection[int]) -> None:
    """Put a check before each use of an index that depends on inputs other than `slots`."""
    data = _dependent_on_data(graph, slots)
    checked: dict[object, Node] = {}
    for node in list(graph.graph.nodes):
        for use in _uses(node):
            if use.places in data and use.places.meta["val"].dtype != torch.bool:
                with graph.graph.inserting_before(node):
                    node.replace_input_with(use.places, _checked(graph, use, checked))
    graph.recompile()


def _dependent_on_data(graph: GraphModule, slots: Collection[int]) -> set[Node]:
    """The tensors that are computed from inputs other than slots."""
    data: set[Node] = set()
    for number, node in enumerate(graph.graph.nodes):
        if not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        is_given = node.op == "placeholder" and number not in slots
        if is_given or any(read in data for read in node.all_input_nodes):
            data.add(node)
    return data


def _uses(node: Node) -> Iterator[_Use]:
    arguments: Any = node.args
    if node.target is aten.embedding.default:
        yield _Use(arguments[0], 0, arguments[1], False)
    elif node.target in _ALONG:
        source, dimension, index = arguments[:3]
        yield _Use(source, dimension, index, False)
    elif node.target in _AT:
        for dimension, index in enumerate(arguments[1]):
            if index is not None:
                yield _Use(arguments[0], dimension, index, True)


def _checked(graph: GraphModule, use: _Use, checked: dict[object, Node]) -> Node:
    """The index once it was looked at, each once for each size."""
    size = _size(graph, use)
    key = (use.places, size, use.may_be_negative)
    if key not in checked:
        arguments = (use.places, size, use.may_be_negative)
        checked[key] = made = graph.graph.call_function(_in_range, arguments)
        made.meta["val"] = torch.empty_like(use.places.meta["val"])
    return checked[key]


def _size(graph: GraphModule, use: _Use) -> int | Node:
    source = use.source.meta["val"]
    size = source.shape[use.dimension] if source.dim() else 1
    if isinstance(size, int):
        return size
    made = graph.graph.call_function(aten.sym_size.int, (use.source, use.dimension))
    made.meta["val"] = size
    return made


# ---- the operator --------------------------------------------------------------------------------


def _look(index: torch.Tensor, size: int, may_be_negative: bool) -> torch.Tensor:
    if index.numel():
        low, high = map(int, index.aminmax())
        if low < (-size if may_be_negative else 0) or high >= size:
            raise IndexError(f"indices from {low} to {high} are out of range for size {size}")
    return index.clone()


def _look_at_fakes(index: torch.Tensor, size: int, may_be_negative: bool) -> torch.Tensor:
    return torch.empty_like(index)


_library: Any = torch.library.Library("penstock", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("in_range(Tensor index, SymInt size, bool may_be_negative) -> Tensor")
_library.impl("in_range", _look, "CPU")
torch.library.register_fake("penstock::in_range", _look_at_fakes, lib=_library)
_in_range = torch.ops.penstock.in_range.default
