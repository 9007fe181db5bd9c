"""`ps.memory`: what becomes of the values that backward needs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType

from penstock.errors import ArgumentError, report
from penstock.run.memory.policy import Policy, make_policy, policy_scope


class memory:
    """Choose what becomes of the values that backward needs, for calls made inside a `with` block.

    The policy holds for the forward calls made inside, on this thread, wherever their backward
    passes run. Scopes may be nested: the innermost counts. `ps.function(memory=...)` takes the same
    as a default for calls outside of any scope.

    Arguments:
        policy: "keep" everything in memory; "swap" what does not fit into the budget, to pinned
            host memory from a GPU and to a file from a CPU; "recompute" it from rows that are kept,
            about as many as the square root of the length of a loop; "auto" does whichever takes
            less time, and without a budget does nothing until an allocation fails.
        budget: bytes of saved values that may be in memory between launches, as a number or a text
            such as "8GiB". Without one "swap" sends everything away, and "recompute" keeps as
            little as it can.

    >>> import torch
    >>> import penstock as ps
    >>> f = ps.function(lambda x: torch.tanh(x) * x)
    >>> x = torch.ones(3, requires_grad=True)
    >>> with ps.memory("swap", budget="8GiB"):
    ...     y = f(x)
    >>> y.sum().backward()

    Gradients are those of "keep": to the bit where values are swapped.
    """

    def __init__(self, policy: str, *, budget: str | int | None = None) -> None:
        self.policy = make_policy(policy, budget)
        self._scopes: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        self._scopes.append(policy_scope(self.policy))
        self._scopes[-1].__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._scopes.pop().__exit__(kind, error, traceback)

    def __repr__(self) -> str:
        return f"<ps.memory {self.policy}>"


def policy_of(given: memory | str | None) -> Policy | None:
    """The policy that an option names: none, one without a budget, or one as `ps.memory` makes."""
    if given is None:
        return None
    if isinstance(given, memory):
        return given.policy
    if isinstance(given, str):
        return make_policy(given, None)
    raise ArgumentError(
        report(
            "function: memory is no memory policy.",
            facts=[("given", type(given).__name__), ("expected", "a name, or ps.memory(...)")],
            todo='Write memory="recompute", or memory=ps.memory("swap", budget="8GiB").',
        )
    )
