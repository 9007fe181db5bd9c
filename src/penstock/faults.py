"""What can go wrong for one instance while a program runs, in words that all ways to run it share.

Eager calls raise a fault at the line at work; the planner sends it up with its row, and the runner
adds the line that the program remembers and the instance. A fault knows names and control numbers,
never the contents of tensors that are data.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import (
    DivisionByZeroError,
    IndexRangeError,
    PenstockError,
    PredicateError,
    RecursionLimitError,
    SizeError,
    report,
)


class Fault(NamedTuple):
    """An error without its place."""

    error: type[PenstockError]
    what: str
    facts: tuple[tuple[str, str], ...]
    todo: str

    def at(self, where: str | None, instance: int | None = None) -> PenstockError:
        """The error to raise; `instance` counts those of a map."""
        facts = self.facts if instance is None else (("instance", str(instance)), *self.facts)
        return self.error(report(self.what, where=where, facts=facts, todo=self.todo))


def nan_predicate(what: str) -> Fault:
    """`what` names the predicate, e.g. `cond: pred`."""
    return Fault(
        PredicateError,
        f"{what} is NaN, which is neither true nor false.",
        (("predicate", "nan"), ("expected", "a bool, or a number that is not NaN")),
        "Find where the NaN comes from, or compare: a comparison with NaN is False.",
    )


def branch_out_of_range(index: int, branches: int) -> Fault:
    """A `switch` without such a branch."""
    return Fault(
        IndexRangeError,
        "switch: index out of range.",
        (("index", str(index)), ("branches", str(branches))),
        f"Use an index from 0 to {branches - 1}, or clamp it to get a default branch.",
    )


def element_out_of_range(index: int, size: int) -> Fault:
    """A tensor that has no such element along its first dimension."""
    return Fault(
        IndexRangeError,
        "x[i]: index out of range.",
        (("index", str(index)), ("size", str(size))),
        "Use an index from -size to size - 1; ps.cond can skip what lies outside.",
    )


def array_index_out_of_range(method: str, index: int, size: int) -> Fault:
    """`TensorArray.read` or `.write` beyond the array."""
    return Fault(
        IndexRangeError,
        f"TensorArray.{method}: index out of range.",
        (("index", str(index)), ("size", str(size))),
        "Use an index from 0 to size - 1; dynamic_size=True lets write go beyond the end.",
    )


def never_written(method: str, index: int, size: int) -> Fault:
    """`TensorArray.read` or `.stack` of an element that is not there."""
    subject = "an element" if method == "stack" else "this element"
    return Fault(
        IndexRangeError,
        f"TensorArray.{method}: {subject} was never written.",
        (("index", str(index)), ("size", str(size))),
        f"Write element {index} first, and use the array that write returns.",
    )


def negative_size(size: int) -> Fault:
    """A `TensorArray` with fewer elements than none."""
    return Fault(
        SizeError,
        "TensorArray: size must not be negative.",
        (("size", str(size)), ("expected", "0 or more")),
        "Pass a size of at least 0.",
    )


def uneven_elements() -> Fault:
    """`TensorArray.stack` of elements of different sizes."""
    return Fault(
        SizeError,
        "TensorArray.stack: the elements of an array have different sizes.",
        (("stacked", "elements of one size"), ("written", "elements of several sizes")),
        "Pad the elements to one size before writing them, or read them one by one.",
    )


def lengths_differ(first: int, other: int) -> Fault:
    """Sequences that are combined element by element."""
    return Fault(
        SizeError,
        "Sequences that are combined element by element must have the same length.",
        (("one", f"{first} elements"), ("another", f"{other} elements")),
        "Cut or pad one of them to the length of the other.",
    )


def division_by_zero(dividend: int) -> Fault:
    """`//` or `%` of whole numbers."""
    return Fault(
        DivisionByZeroError,
        "A whole number is divided by zero.",
        (("dividend", str(dividend)), ("divisor", "0")),
        "Decide on the divisor with ps.cond first, or divide by torch.where(b == 0, 1, b).",
    )


def too_deep(function: str, depth: int, limit: int) -> Fault:
    """More calls inside each other than `max_depth`."""
    return Fault(
        RecursionLimitError,
        f"{function}: the recursion is too deep; it may have no end.",
        (("depth", f"{depth} calls"), ("limit", f"{limit} calls (max_depth)")),
        "Make sure that every path reaches a base case, or allow more: ps.function(max_depth=...).",
    )


def too_many_rows(name: str, rows: int, limit: int, depth: int) -> Fault:
    """More calls, iterations and elements at work at once than the planner holds."""
    return Fault(
        RecursionLimitError,
        f"{name}: too many calls are running at once; the recursion may have no end.",
        (("running", f"{rows} rows, {depth} calls deep"), ("limit", f"{limit} rows")),
        "Make sure that every path reaches a base case, or map over fewer instances at a time.",
    )
