"""What `torch.compile` calls as it is: it would follow the planner, and warn of what it meets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])


def not_compiled(function: _Function) -> _Function:
    """The function, which `torch.compile` around it leaves alone."""
    return cast(_Function, torch.compiler.disable(function))  # type: ignore[no-untyped-call]
