"""Sends every torch function to the open scope."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from penstock.capture.lazy.scope import Scope


class RecordingMode(TorchFunctionMode):
    """Active while user code runs inside a scope."""

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self._scope = scope

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return self._scope.call(func, args, kwargs or _NONE)


_NONE: dict[str, Any] = {}
