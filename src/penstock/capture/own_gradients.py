"""Refuses code that brings its own gradients into a program, which would be lost without a word.

Gradients of a program come from its calls. A custom `autograd.Function`, a hook on the gradients of
a module and a transform of `torch.func` act on torch's own graph, which does not exist while a
program is traced.
"""

from __future__ import annotations

import sys
from types import CodeType

import torch
from torch.utils.hooks import BackwardHook

from penstock.capture.location import user_line
from penstock.errors import TracedValueError, report

#: The code of torch that runs while user code is inside each of them.
_APPLY: CodeType = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]
_MODULE_HOOK: CodeType = BackwardHook._apply_on_tensors.__code__


def refuse_custom_function() -> None:
    """Raise if a custom `autograd.Function` is at work; its forward runs without gradients."""
    if _is_running(_APPLY):
        raise own_gradients(
            "A custom autograd.Function cannot run inside a program: its backward would be lost.",
            "autograd.Function.apply",
            "Write its forward with torch functions, or call it on what the program returns.",
        )


def refuse_module_hook() -> None:
    """Raise if a module with backward hooks is called."""
    if _is_running(_MODULE_HOOK):
        raise own_gradients(
            "A module with backward hooks cannot run inside a program: the hooks would not run.",
            "register_full_backward_hook or register_full_backward_pre_hook",
            "Remove the hooks, or put hooks on the parameters or on what the program returns.",
        )


def own_gradients(what: str, used: str, todo: str) -> TracedValueError:
    """The error for code that handles gradients itself."""
    facts = [("used", used), ("allowed", "calls of torch functions, .detach(), torch.no_grad()")]
    return TracedValueError(report(what, where=user_line(), facts=facts, todo=todo))


def _is_running(code: CodeType) -> bool:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
