"""The memory policy of calls: what becomes of saved values between forward and backward.

A policy holds for the calls made inside its scope, on this thread; a call takes it along to its
backward pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from penstock.errors import ArgumentError, report

KINDS = ("keep", "swap", "recompute", "auto")

#: Bytes of each unit that a budget may be given in.
UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_BY_NAME = {name.lower(): size for name, size in UNITS.items()}

_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Policy:
    """What to do with saved values, and how many bytes of them may be in memory at once."""

    kind: str = "keep"
    #: None: the policy's own choice.
    budget: int | None = None

    def __str__(self) -> str:
        return self.kind if self.budget is None else f"{self.kind}, {in_words(self.budget)}"


KEEP = Policy()

#: None outside of all scopes.
_current: ContextVar[Policy | None] = ContextVar("memory", default=None)


def make_policy(kind: Any, budget: Any) -> Policy:
    """The policy that a user has asked for."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise ArgumentError(
            report(
                "memory: there is no such policy.",
                facts=[("given", repr(kind)), ("policies", ", ".join(map(repr, KINDS)))],
                todo='Use "auto" with a budget unless you know which one you want.',
            )
        )
    if kind == "keep" and budget is not None:
        raise ArgumentError(
            report(
                "memory: a budget says nothing where all values are kept.",
                facts=[("policy", '"keep"'), ("budget", repr(budget))],
                todo='Leave the budget out, or choose "swap", "recompute" or "auto".',
            )
        )
    return Policy(kind, None if budget is None else bytes_of(budget))


def bytes_of(budget: Any) -> int:
    """A number of bytes, or a text such as "8GiB"."""
    if isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0:
        return budget
    if isinstance(budget, str):
        found = _QUANTITY.fullmatch(budget)
        if found is not None and found[2].lower() in _BY_NAME:
            return int(float(found[1]) * _BY_NAME[found[2].lower()])
    raise ArgumentError(
        report(
            "memory: the budget is no number of bytes.",
            facts=[("given", repr(budget)), ("units", ", ".join(UNITS))],
            todo='Give a text such as "8GiB" or "500MB", or a whole number of bytes.',
        )
    )


def in_words(size: float) -> str:
    """A number of bytes, for people."""
    for unit in ("GiB", "MiB", "KiB"):
        if size >= UNITS[unit]:
            return f"{size / UNITS[unit]:.4g} {unit}"
    return f"{size:.4g} B"


def current_policy() -> Policy | None:
    """The policy of the innermost scope; None outside of all."""
    return _current.get()


@contextmanager
def policy_scope(policy: Policy) -> Iterator[None]:
    """Calls made inside follow this policy."""
    token = _current.set(policy)
    try:
        yield
    finally:
        _current.reset(token)


def default_policy(policy: Policy | None) -> AbstractContextManager[None]:
    """Calls made inside follow this policy, unless a scope around says something else."""
    if policy is None or _current.get() is not None:
        return nullcontext()
    return policy_scope(policy)
