"""Models whose cell is under torch.compile, for the hand-batched baselines."""

from __future__ import annotations

import argparse
import copy
import os
import shutil
from typing import TypeVar

import torch
from torch import nn

Model = TypeVar("Model", bound=nn.Module)

NO_COMPILER = "no C++ compiler was found"


def compiler_fault(device: str = "cpu") -> str | None:
    """Why torch.compile makes nothing here, in words; None where it works."""
    if not any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))):
        return NO_COMPILER
    try:
        torch.compile(torch.tanh, dynamic=True)(torch.ones(2, device=device))
    # Whatever fails in the many parts of a compiler, the other candidates can be measured.
    except Exception as failure:
        return f"torch.compile failed with {type(failure).__name__}"
    return None


def add_compiled_option(parser: argparse.ArgumentParser) -> None:
    """Whether the hand-batched program is also run with a compiled cell."""
    parser.add_argument(
        "--compiled",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also by hand with a compiled cell",
    )


def twin_if_wanted(
    options: argparse.Namespace, model: Model, *methods: str, device: str = "cpu"
) -> tuple[Model | None, str]:
    """The compiled twin, or none and why."""
    fault = compiler_fault(device) if options.compiled else "--no-compiled"
    return (compiled_twin(model, *methods), "") if fault is None else (None, fault)


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
