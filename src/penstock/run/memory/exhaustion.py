"""What to say when memory runs out all the same: who wanted it, what is held, what would help.

The error itself stays torch's own, which says how much was wanted; it gets a note.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from penstock.errors import SpillError
from penstock.run.memory.policy import KEEP, Policy, in_words
from penstock.run.memory.store import IN_FLIGHT

if TYPE_CHECKING:
    from penstock.run.blocks import RunnableBlock

#: What torch's CPU allocator says, and what C++ says where torch asks for memory otherwise.
_WORDS = ("can't allocate memory", "not enough memory", "std::bad_alloc")

#: The attribute of an exception that has its note already.
_NOTED = "_penstock_memory"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation has failed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


class Run(Protocol):
    """The call that has run out of memory."""

    #: What becomes of the values that it saves.
    policy: Policy

    def saved_bytes(self) -> int:
        """Bytes that are held for a backward pass."""


def note_exhausted(
    error: Exception, run: Run, block: RunnableBlock | None, rows: int, half: str = ""
) -> None:
    """Add to an error for want of memory the block at work and the bytes saved for backward, and to
    one of values that cannot leave what lets fewer leave.
    """
    is_spill = isinstance(error, SpillError)
    if not (is_spill or is_out_of_memory(error)) or hasattr(error, _NOTED):
        return
    setattr(error, _NOTED, True)
    if is_spill:
        error.add_note(_advice_on_room(run.policy))
        return
    source = None if block is None else block.node.source
    between = f"between launches of {half[1:]}" if half else "between launches"
    who = between if block is None else f"in block {block.name}{half}, {rows:,} rows"
    error.add_note(who if source is None else f"{who}, at {source}")
    saved, policy = run.saved_bytes(), run.policy
    under = "" if policy == KEEP else f", whose memory policy is: {policy}"
    error.add_note(f"Values saved for backward take {in_words(saved)} in this call{under}.")
    error.add_note(_advice(policy, saved, is_back=bool(half)))


def _advice(policy: Policy, saved: int, *, is_back: bool) -> str:
    """What would help a call under a policy."""
    if is_back and not saved:
        return "Gradients and what computes them take the rest: map fewer instances at a time."
    if policy == KEEP:
        cure = 'With ps.memory("auto", budget=...) around the call'
    elif policy.budget == 0:
        return "No budget is smaller, so what is held is at work: map fewer instances at a time."
    elif policy.budget is not None:
        cure = "With a smaller budget"
    elif policy.kind == "swap":
        cure = f"With a budget below {in_words(IN_FLIGHT)}, which is taken where none is named,"
    else:
        cure = f'With a budget, as in ps.memory("{policy.kind}", budget=...),'
    fewer = "fewer of them are held at once; mapping fewer instances at a time takes less as well."
    return f"{cure} {fewer}"


def _advice_on_room(policy: Policy) -> str:
    """What lets fewer values leave under a policy."""
    if policy.kind == "recompute" and policy.budget is not None:
        return "With a larger budget, or with none, fewer rows leave memory."
    if policy.kind == "recompute":
        return "Rows leave as an allocation has failed: map fewer instances at a time."
    again = 'with ps.memory("recompute") values are computed again instead'
    if policy.budget is None:
        return f"{again[0].upper()}{again[1:]}."
    return f"With a larger budget fewer values leave, if memory holds them; {again}."
