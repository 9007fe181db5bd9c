"""The switch between compiled programs and plain Python semantics, per thread."""

from __future__ import annotations

from types import TracebackType

from penstock.capture.active import state


class set_eager:
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
        self._before = state.eager
        state.eager = enabled

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        state.eager = self._before


def is_eager() -> bool:
    """Whether plain Python semantics hold on this thread."""
    return state.eager
