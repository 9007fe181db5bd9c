"""Models whose cell is under torch.compile, for the hand-batched baselines."""

from __future__ import annotations

import copy
import os
import shutil
from typing import TypeVar

import torch
from torch import nn

Model = TypeVar("Model", bound=nn.Module)

NO_COMPILER = "no C++ compiler was found"


def can_compile() -> bool:
    """Whether there is a C++ compiler, without which torch.compile makes nothing for a CPU."""
    return any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++")))


def compiled_twin(model: Model, *methods: str) -> Model:
    """A twin with the same weights, whose methods are compiled for any number of rows.

    What was compiled for other models is forgotten: torch keeps a few variants of one function, and
    beyond those it would run the twin eagerly without a word.
    """
    torch.compiler.reset()
    twin = copy.copy(model)
    for name in methods:
        twin.__dict__[name] = torch.compile(getattr(model, name), dynamic=True)
    return twin
