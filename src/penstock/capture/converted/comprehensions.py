"""List comprehensions and generator expressions: over a traced sequence, all elements at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from penstock.calls.structure import flatten
from penstock.capture.active import active_tracer
from penstock.capture.converted.branches import if_stmt
from penstock.capture.converted.effects import refuse_in_try
from penstock.capture.converted.iterables import stream_of
from penstock.capture.converted.lists import TracedList
from penstock.capture.converted.loops import for_stmt
from penstock.capture.converted.streams import Stream
from penstock.capture.recording import record

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer

Element = Callable[[Any], Any]


def list_comp(source: Any, element: Element, keep: Element | None = None) -> Any:
    """`[element(item) for item in source if keep(item)]`."""
    tracer = active_tracer()
    stream = None if tracer is None else stream_of(tracer, source)
    if stream is not None:
        assert tracer is not None
        return _traced(tracer, source, stream, element, keep)
    if tracer is None or keep is None:
        return [element(item) for item in source if keep is None or keep(item)]
    return _filtered(source, element, keep)


def generator(source: Any, element: Element, keep: Element | None = None) -> Any:
    """`(element(item) for item in source if keep(item))`."""
    tracer = active_tracer()
    if tracer is None or stream_of(tracer, source) is None:
        return (element(item) for item in source if keep is None or keep(item))
    return list_comp(source, element, keep)


def _traced(
    tracer: Tracer, source: Any, stream: Stream, element: Element, keep: Element | None
) -> Any:
    refuse_in_try("A comprehension")
    if keep is not None:
        return _filtered(source, element, keep)
    count: Any = stream.length
    if isinstance(source, torch.Tensor):
        made = tracer.map_fn(element, source)
    else:
        count = tracer.integer(stream.length(), "a comprehension's length")
        numbers = record(tracer, torch.arange, (count,), {})
        made = tracer.map_fn(lambda number: element(stream.at(number)), numbers)
    leaves, structure = flatten(made)
    return TracedList.of_stacked(structure, leaves, count)


def _filtered(source: Any, element: Element, keep: Element) -> Any:
    """Element by element, each appended where its condition holds."""
    found: list[Any] = []

    def get() -> tuple[Any]:
        return (found,)

    def set_(values: tuple[Any]) -> None:
        nonlocal found
        (found,) = values

    facts = (("the list", "lmg"),)

    def body(item: Any) -> None:
        if_stmt(keep(item), lambda: found.append(element(item)), lambda: None, get, set_, facts)

    for_stmt(source, None, body, get, set_, facts)
    return found
