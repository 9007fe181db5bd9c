"""The scope that records on this thread, if any."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.capture.lazy.scope import Scope


class _State(threading.local):
    #: The open scope of this thread.
    scope: Scope | None = None


state = _State()


def active_scope() -> Scope | None:
    """The scope that records here, or None where code simply runs."""
    return state.scope
