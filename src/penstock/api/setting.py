"""Settings that take effect when they are made, and may be put back."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class Setting:
    """A setting that holds from now on; as a context manager it ends with the block."""

    def __init__(self, put_back: Callable[[], None]) -> None:
        self._put_back = put_back

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._put_back()
