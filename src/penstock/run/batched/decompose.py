"""Operators that vmap has no rule for, as compositions of operators it has rules for.

Our own table comes first; torch's table of decompositions is the second source. An operator in
neither is refused by name with `Unbatchable`, and so is one that draws from a torch generator,
whose result would depend on the batching. Only operators that read a row matter: what depends on
uniform values alone runs once, without vmap's help.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table

from penstock.run.batched.functorch_adapter import has_batching_rule, is_random, operator_name

aten = torch.ops.aten


class Unbatchable(Exception):
    """A function has no batched form; `operations` names what stood in the way."""

    def __init__(self, reason: str, operations: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.operations = tuple(operations)


def substitutes_for(graph: torch.fx.GraphModule, is_row: Sequence[bool]) -> dict[Any, Any]:
    """The composition to use for each operator of a single-instance graph that has no batching
    rule.
    """
    found = {}
    missing = []
    for operator in _operators_on_rows(graph, is_row):
        if is_random(operator):
            missing.append(operator_name(operator))
        elif operator in OWN_RULES:
            found[operator] = OWN_RULES[operator]
        elif not has_batching_rule(operator):
            if operator in decomposition_table:
                found[operator] = decomposition_table[operator]
            else:
                missing.append(operator_name(operator))
    if missing:
        raise Unbatchable("no batched form", list(dict.fromkeys(missing)))
    return found


def _operators_on_rows(
    graph: torch.fx.GraphModule, is_row: Sequence[bool]
) -> list[torch._ops.OpOverload]:
    """The operators that read something that differs from row to row, or that are random."""
    rows: set[torch.fx.Node] = set()
    operators: dict[torch._ops.OpOverload, None] = {}
    inputs = iter(is_row)
    for node in graph.graph.nodes:
        reads_rows = (
            next(inputs) if node.op == "placeholder" else bool(rows & {*node.all_input_nodes})
        )
        if reads_rows:
            rows.add(node)
        target = node.target
        if isinstance(target, torch._ops.OpOverload) and (reads_rows or is_random(target)):
            operators[target] = None
    return list(operators)


def _add_bias(gates: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return gates if bias is None else gates + bias


def _lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cell: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    gates = _add_bias(input_gates, input_bias) + _add_bias(hidden_gates, hidden_bias)
    i, f, g, o = gates.chunk(4, dim=-1)
    new_cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(new_cell), new_cell, gates


def _gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hidden: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    in_reset, in_update, in_new = _add_bias(input_gates, input_bias).chunk(3, dim=-1)
    reset, update, new = _add_bias(hidden_gates, hidden_bias).chunk(3, dim=-1)
    r, z = torch.sigmoid(in_reset + reset), torch.sigmoid(in_update + update)
    n = torch.tanh(in_new + r * new)
    return (hidden - n) * z + n, torch.cat([r, z, n, hidden, new], dim=-1)


def _trilinear(
    first: torch.Tensor,
    second: torch.Tensor,
    third: torch.Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """Bilinear layers: (first[k] * second[o, k, l]) @ third[l], the middle operand a weight [o, k,
    l].
    """
    layout = [list(expand1), list(expand2), list(expand3), list(sumdim)]
    if layout == [[1, 3], [0], [1, 2], [2, 3]]:
        outputs, rows, columns = second.shape
        weight = second.permute(1, 0, 2).reshape(rows, outputs * columns)
        partial = (first @ weight).reshape(*first.shape[:-1], outputs, columns)
        return (partial @ third.unsqueeze(-1)).squeeze(-1)
    for dim in sorted(expand1):
        first = first.unsqueeze(dim)
    for dim in sorted(expand2):
        second = second.unsqueeze(dim)
    for dim in sorted(expand3):
        third = third.unsqueeze(dim)
    return (first * second * third).sum(list(sumdim))


def _put(
    source: torch.Tensor, index: torch.Tensor, values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    flat = source.reshape(-1).index_put((index.reshape(-1),), values.reshape(-1), accumulate)
    return flat.reshape(source.shape)


def _masked_scatter(source: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    mask = mask.expand(source.shape)
    position = mask.reshape(-1).to(torch.int64).cumsum(0) - 1
    last = max(values.numel() - 1, 0)
    picked = values.reshape(-1)[position.clamp(0, last)].reshape(source.shape)
    return torch.where(mask, picked, source)


def _log_cumulative_sum(source: torch.Tensor, dim: int) -> torch.Tensor:
    if source.dim() == 0:
        return source
    shape = [1] * (source.dim() + 1)
    size = source.shape[dim]
    dim = dim % source.dim()
    shape[dim], shape[dim + 1] = size, size
    later = torch.ones(size, size, dtype=torch.bool, device=source.device).triu(1).reshape(shape)
    return source.unsqueeze(dim).masked_fill(later, -math.inf).logsumexp(dim + 1)


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return source.to(device=target.device, dtype=target.dtype).expand(target.shape)


def _fill(target: torch.Tensor, value: torch.Tensor | float) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return _copy(target, value)
    return torch.full_like(target, value)


def _slice_scatter(
    target: torch.Tensor,
    source: torch.Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> torch.Tensor:
    if step != 1:
        result: torch.Tensor = aten.slice_scatter(target, source, dim, start, end, step)
        return result
    first, last, _ = slice(start, end).indices(target.shape[dim])
    tail = target.shape[dim] - max(first, last)
    pieces = [target.narrow(dim, 0, first), source, target.narrow(dim, max(first, last), tail)]
    return torch.cat([piece for piece in pieces if piece.shape[dim]], dim)


def _select_scatter(
    target: torch.Tensor, source: torch.Tensor, dim: int, index: int
) -> torch.Tensor:
    index %= target.shape[dim]
    return _slice_scatter(target, source.unsqueeze(dim), dim, index, index + 1)


def _index_add(
    target: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    *,
    alpha: float = 1,
) -> torch.Tensor:
    """vmap's own rule loops over rows."""
    if alpha != 1:
        source = source * alpha
    if target.dim() == 0:
        return target + source.sum()
    shape = [1] * target.dim()
    shape[dim] = -1
    return target.scatter_add(dim, index.reshape(shape).expand(source.shape), source)


def _index_put(
    target: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> torch.Tensor:
    """Under a mask, one value for all places needs no list of places; the rest has a rule."""
    mask = indices[0]
    if mask is None or mask.dtype != torch.bool or len(indices) > 1:
        result: torch.Tensor = aten.index_put(target, indices, values, accumulate)
        return result
    rest = target.dim() - mask.dim()
    if values.dim() > rest and values.numel() != 1:
        raise Unbatchable("writes as many values as a mask has places", ["index_put"])
    values = values.reshape(()) if values.dim() > rest else values
    places = mask.reshape(*mask.shape, *[1] * rest)
    return torch.where(places, target + values if accumulate else values, target)


def _picked(
    pick: Callable[..., Any], join: Callable[..., torch.Tensor], neutral: float
) -> Callable[[torch.Tensor], torch.Tensor]:
    """One element of all: vmap picks it along a dimension, whose gradient goes to one place; torch
    shares the gradient among all elements that equal it, as `join` does.
    """

    def rule(source: torch.Tensor) -> torch.Tensor:
        picked: torch.Tensor = pick(source.reshape(-1), 0)[0]
        if not source.is_floating_point():
            return picked
        shared = join(source.masked_fill(source != picked, neutral))
        return torch.where(picked.isnan(), picked, shared)

    return rule


#: Keyed by operator; a rule takes the operator's own arguments.
OWN_RULES: dict[Any, Callable[..., Any]] = {
    aten._thnn_fused_lstm_cell.default: _lstm_cell,
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._trilinear.default: _trilinear,
    aten.copy.default: _copy,
    aten.fill.Scalar: _fill,
    aten.fill.Tensor: _fill,
    aten.slice_scatter.default: _slice_scatter,
    aten.select_scatter.default: _select_scatter,
    aten.index_add.default: _index_add,
    aten.index_put.default: _index_put,
    aten.put.default: _put,
    aten.masked_scatter.default: _masked_scatter,
    aten._logcumsumexp.default: _log_cumulative_sum,
    aten.max.default: _picked(torch.max, torch.amax, -math.inf),
    aten.min.default: _picked(torch.min, torch.amin, math.inf),
    aten.median.default: _picked(torch.median, torch.amax, -math.inf),
    aten.nanmedian.default: _picked(torch.nanmedian, torch.amax, -math.inf),
}
