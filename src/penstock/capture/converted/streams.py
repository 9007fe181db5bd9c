"""What a `for` can go through without Python knowing how far: ranges, tensors, arrays, traced
lists, and `enumerate`, `zip` and `reversed` of these.

A stream gives elements by number, and says whether there is one; it is made for one loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from penstock.capture.converted.decisions import and_
from penstock.capture.converted.lists import TracedList
from penstock.capture.elements import Elements
from penstock.capture.location import user_place
from penstock.capture.traced_tensor import TracedTensor
from penstock.errors import ArgumentError, report

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


class Stream(Protocol):
    """Elements by number, from 0; made for one loop."""

    def has(self, number: Any) -> Any:
        """Whether there is an element of that number."""

    def at(self, number: Any) -> Any:
        """The element."""

    def length(self) -> Any:
        """How many there are; for a range it may be negative, which means none."""

    def capacity(self) -> Any:
        """How many a loop without `break` takes; None where that is not known exactly."""


class TracedRange:
    """`range` with a bound that only a run knows."""

    def __init__(self, start: Any, stop: Any, step: int) -> None:
        self._start, self._stop, self._step = start, stop, step

    def __iter__(self) -> Any:
        raise _only_in_for("range")

    def has(self, number: Any) -> Any:
        return number < self.length()

    def length(self) -> Any:
        """The number of elements; negative where there are none."""
        if isinstance(self._start, int) and self._start == 0 and self._step == 1:
            return self._stop
        if self._step > 0:
            span = self._stop - self._start
            return span if self._step == 1 else (span + (self._step - 1)) // self._step
        span = self._start - self._stop
        return span if self._step == -1 else (span + (-self._step - 1)) // -self._step

    def capacity(self) -> Any:
        stop, is_plain = self._stop, isinstance(self._start, int) and self._start == 0
        is_size = isinstance(stop, TracedTensor) and stop.traced.hint is not None
        return stop if is_plain and self._step == 1 and is_size else None

    def at(self, number: Any) -> Any:
        scaled = number if self._step == 1 else number * self._step
        return scaled if isinstance(self._start, int) and self._start == 0 else scaled + self._start

    def reverse(self) -> TracedRange:
        """The same numbers from the last to the first."""
        last = self._start + (self.length() - 1) * self._step
        return TracedRange(last, self._start - self._step, -self._step)


class SequenceStream:
    """A tensor, an array, or a nested value of these."""

    def __init__(self, tracer: Tracer, value: Any, what: str) -> None:
        self._elements = Elements(tracer, value, what)
        self._tracer = tracer
        self._scope = tracer.scope
        self._length: Any = None

    def has(self, number: Any) -> Any:
        return number < self.length()

    def at(self, number: Any) -> Any:
        return self._elements.at(number)

    def length(self) -> Any:
        if self._length is None:
            with self._tracer.reopened(self._scope):
                self._length = self._elements.length()
        return self._length

    def capacity(self) -> Any:
        return self.length()


class ListStream:
    def __init__(self, values: TracedList) -> None:
        self._values = values

    def has(self, number: Any) -> Any:
        return number < self._values.count

    def at(self, number: Any) -> Any:
        return self._values[number]

    def length(self) -> Any:
        return self._values.count

    def capacity(self) -> Any:
        return self._values.count


class Composed:
    """What `enumerate`, `zip` and `reversed` make of traced sequences."""

    def __init__(self, sources: Sequence[Any], make: Callable[[Tracer], Stream]) -> None:
        self.sources = sources
        self._make = make

    def __iter__(self) -> Any:
        raise _only_in_for("a traced sequence")

    def stream(self, tracer: Tracer) -> Stream:
        """The elements, for one loop."""
        return self._make(tracer)


class Enumerated:
    def __init__(self, stream: Stream, start: Any) -> None:
        self._stream, self._start = stream, start

    def has(self, number: Any) -> Any:
        return self._stream.has(number)

    def at(self, number: Any) -> Any:
        is_plain = isinstance(self._start, int) and self._start == 0
        return (number if is_plain else number + self._start), self._stream.at(number)

    def length(self) -> Any:
        return self._stream.length()

    def capacity(self) -> Any:
        return self._stream.capacity()


class Zipped:
    def __init__(self, streams: Sequence[Stream]) -> None:
        self._streams = streams

    def has(self, number: Any) -> Any:
        first, *others = self._streams
        later = [partial(other.has, number) for other in others]
        return and_(first.has(number), *later)

    def at(self, number: Any) -> Any:
        return tuple(stream.at(number) for stream in self._streams)

    def length(self) -> Any:
        return self._streams[0].length()

    def capacity(self) -> Any:
        return None


class Reversed:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._length = stream.length()

    def has(self, number: Any) -> Any:
        return number < self._length

    def at(self, number: Any) -> Any:
        return self._stream.at(self._length - 1 - number)

    def length(self) -> Any:
        return self._length

    def capacity(self) -> Any:
        return self._stream.capacity()


def _only_in_for(what: str) -> ArgumentError:
    return ArgumentError(
        report(
            f"{what} with a traced length can only be gone through by a `for` in converted code.",
            where=user_place(),
            facts=[("used", "as a Python iterator"), ("length", "known only at run time")],
            todo="Use a `for` statement or a list comprehension over it.",
        )
    )
