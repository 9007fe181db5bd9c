"""Every error and warning that Penstock raises on its own behalf.

A message has four parts: what failed, where in the user's code, the two facts that clash side by
side, and what to do. `report` puts them together, so that all messages read alike. Exceptions
raised by user code are never wrapped: they surface as themselves with a note.
"""

from __future__ import annotations

from collections.abc import Sequence


class PenstockError(Exception):
    """The base of all errors of this library."""


class PenstockWarning(UserWarning):
    """The category of all warnings of this library."""


class StructureError(PenstockError, TypeError):
    """Two values that must have one structure (the same nesting, keys and leaf types) do not."""


class BranchTypeError(StructureError):
    """The branches of `cond` or `switch` return different structures, shapes or dtypes."""


class LoopTypeError(StructureError):
    """A loop body returns other types than it receives."""


class TracedValueError(PenstockError, TypeError):
    """A traced value was used where Python needs a concrete one."""


class ArgumentError(PenstockError, TypeError):
    """An argument or a column cannot be accepted as it is."""


class ColumnError(PenstockError, ValueError):
    """Columns or instances of a `map` do not fit together."""


class IndexRangeError(PenstockError, IndexError):
    """An index of `switch`, of a sequence or of a `TensorArray` is out of range, or was never
    written.
    """


class PredicateError(PenstockError, ValueError):
    """A predicate has no truth value: NaN, or not a single element."""


class RecursionLimitError(PenstockError, RecursionError):
    """A program went deeper, or held more live rows, than its limits allow."""


class SizeError(PenstockError, ValueError):
    """A size is negative, or two sizes that must be equal are not."""


class DivisionByZeroError(PenstockError, RuntimeError):
    """A whole number was divided by zero; torch raises a RuntimeError for it too."""


class MutationError(PenstockError, RuntimeError):
    """A program changes a tensor in place that it does not own."""


class RecordedTensorError(PenstockError, RuntimeError):
    """A recorded tensor was used in a way that needs what its scope cannot give."""


class RepetitionError(PenstockError, RuntimeError):
    """Gradients of gradients need a step again that cannot be run twice."""


class AssertionFailedError(PenstockError, AssertionError):
    """An assertion on traced values does not hold for an instance."""


class SideEffectError(PenstockError, RuntimeError):
    """A traced branch or loop changes what is outside of it."""


class UndefinedVariableError(PenstockError, UnboundLocalError):
    """A variable is read that only some paths through a traced branch or loop assign."""


class UnsupportedSyntaxError(PenstockError, TypeError):
    """A statement cannot depend on a traced value, or stand around one that does."""


class NanError(PenstockError, ArithmeticError, RuntimeError):
    """A value or a gradient is NaN, and somebody asked to be told; anomaly mode raises a
    RuntimeError for it too.
    """


class SpillError(PenstockError, OSError):
    """Saved values could not be written to disk or to pinned memory, or not be read back."""


class TreeError(PenstockError, ValueError):
    """Arrays, nested tuples or brackets that do not describe exactly one tree."""


class WaitError(PenstockError, RuntimeError):
    """An instance wants to wait for a value where it cannot be suspended."""


class ProcessError(PenstockError, RuntimeError):
    """A process of the group has failed, has ended, or does not answer."""


class AgreementError(ProcessError):
    """The processes of a group do not do the same: other arguments, seeds, programs or orders."""


class MissingExtraError(PenstockError, ImportError):
    """A package is not installed that an extra of Penstock brings."""


class InternalError(PenstockError, RuntimeError):
    """Penstock broke one of its own invariants. Please report it."""


def report(
    what: str,
    *,
    where: str | None = None,
    facts: Sequence[tuple[str, str]] = (),
    todo: str = "",
) -> str:
    """The text of an error: what failed, where, the facts side by side, what to do."""
    width = max((len(label) for label, _ in facts), default=0)
    lines = [what]
    if where:
        lines.append(f"  at {where}")
    lines.extend(f"  {label:<{width}}  {fact}" for label, fact in facts)
    if todo:
        lines.append(todo)
    return "\n".join(lines)
