"""Which halves of blocks were compiled on this machine before: their code is on disk, so that
compiling them again takes a tenth of the time.

Beside Inductor's own cache lies an empty file for each, so that both are cleared together. What a
block is called and what it takes is all that counts: whoever finds another block of that name and
these inputs has waited too little, nothing worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import torch

from penstock.run.batched import BlockInput
from penstock.run.fused.inductor import cache_folder


def mark_of(name: str, inputs: Sequence[BlockInput]) -> str:
    """What a half is known by."""
    return sha256(repr((name, *inputs, torch.__version__)).encode()).hexdigest()[:32]


def was_compiled(mark: str) -> bool:
    """Whether it was compiled before."""
    return _file(mark).exists()


def note_compiled(mark: str) -> None:
    """It has been compiled."""
    file = _file(mark)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError:  # then the next process waits as long as this one
        pass


def _file(mark: str) -> Path:
    return cache_folder() / "penstock" / mark
