"""Random operations in a trace: each becomes a `RandomKey` and a call that draws under it.

Here draws have types only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from penstock.calls.torch_names import name_of
from penstock.capture.random_calls import draw_by_rule
from penstock.capture.recording import record, record_named
from penstock.capture.source import user_source
from penstock.ir.program import Node, RandomKey
from penstock.ir.types import TensorType

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


def trace_random_call(
    tracer: Tracer, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What user code gets for a call of a random torch function."""
    with tracer.mode:
        return draw_by_rule(TracedDraws(tracer), name_of(function), function, args, kwargs)


class TracedDraws:
    """Draws that are recorded; made and used while the tracer's mode is on."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def draw(self, kind: str, device: torch.device, *args: Any) -> torch.Tensor:
        """Record the draw, with the next site of the current body."""
        tracer = self._tracer
        site = tracer.scope.next_site()
        value = tracer.new_value(TensorType("int64", (), str(device)))
        tracer.scope.nodes.append(Node(RandomKey(site), (), (value,), user_source(), site))
        operands = (tracer.wrap(value), *args)
        made: torch.Tensor = record_named(
            tracer, f"penstock.random.{kind}", TYPED[kind], operands, {}
        )
        return made

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the call as it is."""
        return record(self._tracer, function, args, kwargs)

    def watching(self) -> AbstractContextManager[Any]:
        """Nothing to do: the mode is on."""
        return nullcontext()


def _sized(key: torch.Tensor, shape: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=key.device)


def _whole_numbers(key: torch.Tensor, low: int, high: int, shape: Any) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int64, device=key.device)


def _like_source(key: torch.Tensor, source: torch.Tensor, p: float) -> torch.Tensor:
    return source.clone()


#: For each function of `run.random_bits` one with the same types that draws nothing.
TYPED: dict[str, Callable[..., torch.Tensor]] = {
    "uniform": _sized,
    "normal": _sized,
    "randint": _whole_numbers,
    "dropout": _like_source,
}
