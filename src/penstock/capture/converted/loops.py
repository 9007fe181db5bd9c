"""`while` and `for`: unrolled as long as Python decides, a loop of the program where it cannot.

A loop carries the variables that its body assigns and that are read at its head or after it. Others
belong to one iteration. A `while` whose test becomes traced in the first iteration is traced from
its start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from penstock.capture.active import active_tracer
from penstock.capture.converted.checkpoints import Checkpoint
from penstock.capture.converted.decisions import and_, is_open
from penstock.capture.converted.effects import refuse_in_try
from penstock.capture.converted.iterables import stream_of
from penstock.capture.converted.lists import TracedList
from penstock.capture.converted.streams import Stream
from penstock.capture.converted.traced_loops import TracedLoop
from penstock.capture.converted.variables import Variables
from penstock.capture.recording import record

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer

Facts = tuple[tuple[str, str], ...]

#: Iterations that Python decides on before a traced test, up to which a `while` begins again.
_PEELED = 1


def while_stmt(
    test: Callable[[], Any], body: Callable[[], None], get: Any, set_: Any, facts: Facts
) -> None:
    """`while test(): body()`."""
    tracer = active_tracer()
    if tracer is None:
        while test():
            body()
        return
    variables = Variables(get, set_, facts)
    start = _Start(tracer, variables)
    site = tracer.scope.next_site()
    iteration = 0
    while True:
        here = Checkpoint(tracer)
        with tracer.scope.decided_at(site, iteration):
            goes_on = test()
        if is_open(goes_on):
            here.restore()
            if iteration <= _PEELED and start.can_restore:
                start.restore()
            _trace_while(tracer, test, body, variables)
            return
        if not goes_on:
            return
        with tracer.scope.decided_at(site, iteration, is_body=True):
            body()
        iteration += 1


class _Start:
    """The state before the first iteration."""

    def __init__(self, tracer: Tracer, variables: Variables) -> None:
        self._checkpoint = Checkpoint(tracer)
        self._variables = variables
        self._values = variables.values()
        changed = variables.marked("m")
        self._contents = [
            (value, value.copy())
            for name, value in self._values.items()
            if name in changed and isinstance(value, list | dict | set)
        ]
        self._lists = [
            (value, value.copy()) for value in self._values.values() if type(value) is TracedList
        ]

    @property
    def can_restore(self) -> bool:
        return self._checkpoint.can_restore

    def restore(self) -> None:
        self._checkpoint.restore()
        for value, contents in self._contents:
            if isinstance(value, list):
                value[:] = contents
            else:
                value.clear()
                value.update(contents)
        for traced, copied in self._lists:
            traced.arrays, traced.count = copied.arrays, copied.count
            traced.structure, traced.has_holes = copied.structure, copied.has_holes
        self._variables.assign(self._values)


def for_stmt(
    source: Any,
    goes_on: Callable[[], Any] | None,
    body: Callable[[Any], None],
    get: Any,
    set_: Any,
    facts: Facts,
) -> None:
    """`for item in source: body(item)`, as long as `goes_on()` holds."""
    tracer = active_tracer()
    stream = None if tracer is None else stream_of(tracer, source)
    if tracer is None or stream is None:
        _unroll(tracer, source, goes_on, body, Variables(get, set_, facts))
        return
    _trace_for(tracer, stream, goes_on, body, Variables(get, set_, facts))


def _unroll(
    tracer: Tracer | None,
    source: Any,
    goes_on: Callable[[], Any] | None,
    body: Callable[[Any], None],
    variables: Variables,
) -> None:
    """Item by item; once a traced value has broken the loop, the rest is a branch."""
    if tracer is None:
        for item in source:
            body(item)
            if goes_on is not None and not goes_on():
                return
        return
    from penstock.capture.converted.branches import if_stmt

    site = tracer.scope.next_site()
    for iteration, item in enumerate(source):
        holds = True if goes_on is None else goes_on()
        if not is_open(holds) and not holds:
            return
        with tracer.scope.decided_at(site, iteration, is_body=True):
            if not is_open(holds):
                body(item)
            else:

                def rest(item: Any = item) -> None:
                    variables.clear_flags()
                    body(item)

                if_stmt(
                    holds,
                    rest,
                    lambda: None,
                    variables.get,
                    variables.set,
                    variables.facts,
                )


def _trace_while(
    tracer: Tracer,
    test: Callable[[], Any],
    body: Callable[[], None],
    variables: Variables,
) -> None:
    refuse_in_try("`while`")
    loop = TracedLoop(tracer, "while", variables)

    def condition(_: Sequence[Any]) -> Any:
        return test()

    def step(_: Sequence[Any]) -> list[Any]:
        body()
        return []

    loop.trace([], condition, step)


def _trace_for(
    tracer: Tracer,
    stream: Stream,
    goes_on: Callable[[], Any] | None,
    body: Callable[[Any], None],
    variables: Variables,
) -> None:
    refuse_in_try("`for`")
    loop = TracedLoop(tracer, "for", variables)
    loop.reserve(stream.capacity())

    def condition(extra: Sequence[Any]) -> Any:
        more = stream.has(extra[0])
        return more if goes_on is None else and_(more, goes_on)

    def step(extra: Sequence[Any]) -> list[Any]:
        advanced = record(tracer, torch.Tensor.add, (extra[0], 1), {})
        body(stream.at(extra[0]))
        return [advanced]

    loop.trace([tracer.tensor(0)], condition, step)
