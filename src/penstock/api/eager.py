"""The switch between compiled programs and plain Python semantics, per thread."""

from __future__ import annotations

from functools import partial

from penstock.api.setting import Setting
from penstock.capture.active import state


class set_eager(Setting):
    """Run every `ps.function` as the plain Python function that it decorates, on this thread.

    It equals removing the decorators: one instance after the other, no graph, no batching; only
    random torch functions draw as they do in a graph. Takes effect when called; as a context
    manager it puts the former setting back at the end.

    Arguments:
        enabled: whether programs run eagerly from now on.

    Gradients are those of torch's own autograd.

    >>> with set_eager(True):
    ...     is_eager()
    True
    >>> is_eager()
    False
    """

    def __init__(self, enabled: bool) -> None:
        super().__init__(partial(setattr, state, "eager", state.eager))
        state.eager = enabled


def is_eager() -> bool:
    """Whether plain Python semantics hold on this thread."""
    return state.eager
