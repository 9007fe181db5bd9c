"""`range`, `enumerate`, `zip`, `reversed` and `len` in converted code.

They are Python's own, unless what they are given is traced: then they make what a `for` of the
program goes through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from penstock.capture.active import active_tracer
from penstock.capture.converted.lists import TracedList
from penstock.capture.converted.streams import (
    Composed,
    Enumerated,
    ListStream,
    Reversed,
    SequenceStream,
    Stream,
    TracedRange,
    Zipped,
)
from penstock.capture.location import user_place
from penstock.capture.traced_array import TracedTensorArray
from penstock.capture.traced_tensor import TracedDimension, TracedTensor
from penstock.errors import ArgumentError, report

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


def is_traced_source(value: Any) -> bool:
    """Whether going through `value` makes a loop of the program."""
    kinds = (TracedRange, Composed, TracedList, TracedTensorArray, torch.Tensor)
    return isinstance(value, kinds)


def stream_of(tracer: Tracer, value: Any) -> Stream | None:
    """The elements of a traced source; None where Python goes through them."""
    if isinstance(value, TracedRange):
        return value
    if isinstance(value, Composed):
        return value.stream(tracer)
    if isinstance(value, TracedList):
        return ListStream(value.copy())
    if isinstance(value, TracedTensorArray):
        return SequenceStream(tracer, value, "for")
    if isinstance(value, torch.Tensor) and _is_long(tracer, value):
        return SequenceStream(tracer, value, "for")
    return None


def _is_long(tracer: Tracer, tensor: torch.Tensor) -> bool:
    """Whether a tensor is gone through by a loop: all but those made from constants are."""
    return not isinstance(tensor, TracedTensor) or tensor.traced.contents is None


def traced_range(*bounds: Any) -> Any:
    """`range(...)`."""
    tracer = active_tracer()
    if tracer is None:
        return range(*bounds)
    for bound in bounds:
        if isinstance(bound, TracedDimension):
            tracer.dimensions.require_dynamic(bound.origins)
    plain = [_plain(bound) for bound in bounds]
    if not any(isinstance(bound, torch.Tensor) for bound in plain):
        return range(*plain)
    start, stop, step = 0, plain[0], 1
    if len(plain) > 1:
        start, stop = plain[0], plain[1]
        step = plain[2] if len(plain) > 2 else 1
    if not isinstance(step, int):
        raise ArgumentError(
            report(
                "range: the step must be known while tracing.",
                where=user_place(),
                facts=[("step", "a traced value"), ("expected", "a Python int")],
                todo="Use a `while` loop with a counter.",
            )
        )
    first, last = (
        bound if isinstance(bound, int) else tracer.integer(bound, "range: a bound")
        for bound in (start, stop)
    )
    return TracedRange(first, last, step)


def _plain(bound: Any) -> Any:
    if isinstance(bound, TracedTensor) and bound.traced.contents is not None:
        return int(bound.traced.contents)
    return bound


def traced_enumerate(source: Any, start: Any = 0) -> Any:
    """`enumerate(source, start)`."""
    if active_tracer() is None or not is_traced_source(source):
        return enumerate(source, start)
    return Composed([source], lambda tracer: Enumerated(_stream(tracer, source), start))


def traced_zip(*sources: Any, strict: bool = False) -> Any:
    """`zip(*sources)`."""
    if active_tracer() is None or not any(is_traced_source(source) for source in sources):
        return zip(*sources, strict=strict)
    return Composed(sources, lambda tracer: Zipped([_stream(tracer, source) for source in sources]))


def traced_reversed(source: Any) -> Any:
    """`reversed(source)`."""
    if active_tracer() is None or not is_traced_source(source):
        return reversed(source)
    if isinstance(source, TracedRange):
        return source.reverse()
    return Composed([source], lambda tracer: Reversed(_stream(tracer, source)))


def _stream(tracer: Tracer, source: Any) -> Stream:
    found = stream_of(tracer, source)
    if found is None and isinstance(source, range):
        found = TracedRange(source.start, source.stop, source.step)
    if found is None:
        raise ArgumentError(
            report(
                "A traced sequence and a Python one cannot be gone through side by side.",
                where=user_place(),
                facts=[("one", "a traced sequence"), ("another", f"a {type(source).__name__}")],
                todo="Make both tensors or arrays, e.g. with torch.stack; or unroll both.",
            )
        )
    return found


def length(value: Any) -> Any:
    """`len(value)`."""
    tracer = active_tracer()
    if tracer is None:
        return len(value)
    if isinstance(value, TracedList):
        return value.count
    if isinstance(value, TracedTensorArray):
        return value.size()
    if isinstance(value, TracedRange | Composed):
        stream = stream_of(tracer, value)
        assert stream is not None
        return stream.length()
    if isinstance(value, TracedTensor) and value.traced.fakes[0].dim():
        return value.shape[0]
    return len(value)


def unpack(item: Any, count: int) -> Any:
    """The parts of an element that a comprehension takes apart."""
    parts = tuple(item)
    if len(parts) != count:
        raise ValueError(f"expected {count} values to unpack, got {len(parts)}")
    return parts
