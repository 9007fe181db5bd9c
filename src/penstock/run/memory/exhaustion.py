"""What to say when memory runs out all the same: who wanted it, what is held, what would help.

The error itself stays torch's own, which says how much was wanted; it gets a note.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from penstock.run.memory.policy import in_words

if TYPE_CHECKING:
    from penstock.run.blocks import RunnableBlock

#: What torch's CPU allocator says.
_WORDS = ("can't allocate memory", "not enough memory")

#: The attribute of an exception that has its note already.
_NOTED = "_penstock_memory"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation has failed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def note_exhausted(
    error: Exception, block: RunnableBlock | None, rows: int, saved: int, half: str = ""
) -> None:
    """Add to an error for want of memory the block at work and the bytes saved for backward."""
    if not is_out_of_memory(error) or hasattr(error, _NOTED):
        return
    setattr(error, _NOTED, True)
    source = None if block is None else block.node.source
    who = "between launches" if block is None else f"in block {block.name}{half}, {rows:,} rows"
    error.add_note(who if source is None else f"{who}, at {source}")
    error.add_note(f"Values saved for backward take {in_words(saved)} in this call.")
    error.add_note(
        'With ps.memory("auto", budget=...) around the call fewer of them are held at once; '
        "mapping fewer instances at a time takes less as well."
    )
