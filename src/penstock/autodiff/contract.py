"""Weight gradients contracted over the rows of many launches.

The gradient of a uniform operand is a sum over rows: a product of two factors, a sum of one, or
rows added to a table; of an operand that a block reads more than once, several of these. The
backward half gives the factors; they are collected until there are enough rows for one efficient
contraction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import torch

from penstock.run.batched.products import turned_product
from penstock.run.batched.sizes import ROWS, Polynomial, Size
from penstock.run.batched.steps import Step, StraightLine, TensorFact
from penstock.run.strips import contraction

#: Rows that are collected before they are contracted.
WINDOW = 512
#: The same on a CPU, where larger products are not faster, and factors are in the caches still.
FEW = 256

_ATEN = torch.ops.aten
_TURNS = (_ATEN.permute.default, _ATEN.t.default, _ATEN.transpose.int)
_RESHAPES = (_ATEN.view.default, _ATEN.reshape.default, _ATEN._unsafe_view.default)


@dataclass(frozen=True, slots=True)
class Contraction:
    """How a gradient follows from its factors.

    "product": first.T @ second; "sum": first summed over rows, in `shape`; "table": rows `first`
    added to the rows `second` of a table of `shape`, but for the row `skipped`.
    """

    kind: str
    #: Places of the factors among the results of the backward half, of one term after the other.
    places: tuple[int, ...]
    shape: tuple[int, ...] = ()
    skipped: int = -1

    def terms(self, factors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
        """The factors of each term, such that those of others can follow: a launch may look up as
        many rows of a table for each of its own as its sequences are long.
        """
        if self.kind == "sum":
            return [(rows.reshape(rows.shape[0], prod(self.shape)),) for rows in factors]
        pairs: list[tuple[torch.Tensor, ...]]
        pairs = list(zip(factors[::2], factors[1::2], strict=True))
        if self.kind == "product":
            return pairs
        return [(rows.reshape(-1, *self.shape[1:]), index.reshape(-1)) for rows, index in pairs]

    def contract(
        self, factors: Sequence[torch.Tensor], known: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The gradient of all rows of the factors of one term, added to what is known of it."""
        first = factors[0]
        if self.kind == "product":
            made = contraction.turned_product(first, factors[1], known)
            return turned_product(first, factors[1], known) if made is None else made
        if self.kind == "sum":
            total = first.sum(0).reshape(self.shape)
            return total if known is None else known.add_(total)
        table = first.new_zeros(self.shape) if known is None else known
        table.index_add_(0, factors[1], first)
        if self.skipped >= 0:
            table[self.skipped].zero_()
        return table


@dataclass(slots=True)
class Window:
    """Factors of one uniform operand that wait for their contraction."""

    contraction: Contraction
    parts: list[tuple[torch.Tensor, ...]] = field(default_factory=list)
    rows: int = 0
    #: The gradient of rows that were contracted.
    gradient: torch.Tensor | None = None

    def add(
        self,
        factors: Sequence[torch.Tensor],
        owned: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        """Take factors, and contract what is enough rows; what has to wait is put into memory that
        nobody writes to by `owned`, unless it is there.
        """
        enough = FEW if _is_exact(factors[0]) else WINDOW
        for term in self.contraction.terms(factors):
            rows = term[0].shape[0]
            if rows >= enough:
                self.gradient = self.contraction.contract(term, self.gradient)
                continue
            self.parts.append(term if owned is None else tuple(map(owned, term)))
            self.rows += rows
        if self.rows >= enough:
            self._contract()

    def _contract(self) -> None:
        parts, self.parts, self.rows = self.parts, [], 0
        columns = zip(*parts, strict=True)
        factors = parts[0] if len(parts) == 1 else [torch.cat(column) for column in columns]
        self.gradient = self.contraction.contract(factors, self.gradient)

    def flush(self) -> torch.Tensor | None:
        """The gradient of what was collected."""
        if self.parts:
            self._contract()
        gradient, self.gradient = self.gradient, None
        return gradient


def _is_exact(values: torch.Tensor) -> bool:
    return values.dtype in (torch.float32, torch.float64) and values.device.type == "cpu"


def cut(
    code: StraightLine, gradients: Sequence[Step | None], is_uniform: Sequence[bool]
) -> tuple[StraightLine, list[int | Contraction | None]]:
    """The code with factors in the place of weight gradients, and how to get each gradient."""
    given, inside = set(code.inputs), {*code.inputs, *code.steps}
    outputs: dict[Step, int] = {}
    found: list[int | Contraction | None] = []
    steps = list(code.steps)

    def place(step: Step) -> int:
        return outputs.setdefault(step, len(outputs))

    for gradient, uniform in zip(gradients, is_uniform, strict=True):
        if gradient is None:
            found.append(None)
            continue
        factors = _factors(gradient) if uniform and gradient not in given else None
        if factors is not None and not all(step in inside for step in factors.steps):
            factors = None
        if factors is None:
            found.append(place(gradient))
        else:
            kind, shape, skipped, read = factors
            if kind == "sum":
                read = _added(read, steps)
            found.append(Contraction(kind, tuple(map(place, read)), shape, skipped))
    return StraightLine(code.inputs, tuple(steps), tuple(outputs)).live(), found


class _Factors(NamedTuple):
    """The steps that give the factors of a gradient, of one term after the other."""

    kind: str
    shape: tuple[int, ...]
    skipped: int
    steps: tuple[Step, ...]


def _factors(step: Step) -> _Factors | None:
    shape = _concrete(step)
    if shape is None:
        return None
    if step.target is _ATEN.add.Tensor and not step.kwargs and len(step.args) == 2:
        return _both(*map(_factors_of, step.args))
    if step.target in _TURNS and isinstance(step.args[0], Step) and len(shape) == 2:
        inner = _factors(step.args[0])
        return _turned(inner) if inner is not None and inner.kind == "product" else None
    product = _product(step)
    if product:
        return _Factors("product", (), -1, product)
    while step.target in _RESHAPES:
        step = step.args[0]
    if step.target is _ATEN.sum.dim_IntList and tuple(step.args[1]) == (0,):
        rows = step.args[0]
        return _Factors("sum", shape, -1, (rows,)) if _counts_rows(rows) else None
    if step.target is _ATEN.embedding_dense_backward.default and not step.args[4]:
        rows, index = step.args[0], step.args[1]
        if _counts_rows(rows) and _counts_rows(index):
            return _Factors("table", shape, int(step.args[3]), (rows, index))
    return None


def _factors_of(term: object) -> _Factors | None:
    return _factors(term) if isinstance(term, Step) else None


def _both(first: _Factors | None, second: _Factors | None) -> _Factors | None:
    """The factors of a sum of two gradients, if they are of one kind."""
    if first is None or second is None or first[:3] != second[:3]:
        return None
    return first._replace(steps=first.steps + second.steps)


def _turned(product: _Factors) -> _Factors:
    """The factors of a transposed product."""
    pairs = zip(product.steps[::2], product.steps[1::2], strict=True)
    return product._replace(
        steps=tuple(step for first, second in pairs for step in (second, first))
    )


def _added(rows: tuple[Step, ...], steps: list[Step]) -> tuple[Step, ...]:
    """Rows that are summed in the end, added up first where they are alike."""
    if len({(row.tensor.shape, row.tensor.dtype) for row in rows}) > 1:
        return rows
    total = rows[0]
    for row in rows[1:]:
        total = Step(_ATEN.add.Tensor, (total, row), {}, total.fact)
        steps.append(total)
    return (total,)


def _product(step: Step) -> tuple[Step, Step] | None:
    """The factors of first.T @ second, if that is what the step computes."""
    if step.target is not _ATEN.mm.default:
        return None
    left, right = step.args
    if left.target not in _TURNS:
        return None
    first = left.args[0]
    return (first, right) if _counts_rows(first) and _counts_rows(right) else None


def _counts_rows(step: Step) -> bool:
    """Whether the first dimension runs over rows, one or more entries each."""
    fact = step.fact
    if not isinstance(fact, TensorFact) or not fact.shape:
        return False
    return _has_rows(fact.shape[0]) and not any(map(_has_rows, fact.shape[1:]))


def _has_rows(size: Size) -> bool:
    return isinstance(size, Polynomial) and any(ROWS in names for names, _ in size.terms)


def _concrete(step: Step) -> tuple[int, ...] | None:
    fact = step.fact
    if not isinstance(fact, TensorFact):
        return None
    sizes = tuple(size for size in fact.shape if isinstance(size, int))
    return sizes if len(sizes) == len(fact.shape) else None
