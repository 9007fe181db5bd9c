"""Python's own functions where an argument is traced: `range`, `len`, `int`, `max`, `sum`, ...

Each is the builtin itself unless a traced value is among its arguments.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import torch

from penstock.capture.active import active_tracer
from penstock.capture.converted.decisions import as_bool, is_open, not_, or_
from penstock.capture.converted.iterables import (
    is_traced_source,
    length,
    traced_enumerate,
    traced_range,
    traced_reversed,
    traced_zip,
)
from penstock.capture.converted.lists import TracedList
from penstock.capture.recording import record


def _whole(*args: Any) -> Any:
    """`int(value)`."""
    if len(args) == 1 and _is_number(args[0]):
        return _tracer().tensor(args[0]).to(torch.int64)
    return int(*args)


def _floating(*args: Any) -> Any:
    """`float(value)`."""
    if len(args) == 1 and _is_number(args[0]):
        return _tracer().tensor(args[0]).to(torch.get_default_dtype())
    return float(*args)


def _truth(*args: Any) -> Any:
    """`bool(value)`."""
    tracer = active_tracer()
    if tracer is not None and len(args) == 1 and is_open(args[0]):
        return as_bool(tracer, args[0], "bool")
    return bool(*args)


def _largest(*args: Any, **kwargs: Any) -> Any:
    """`max(...)`."""
    return _extreme(max, lambda new, best: new > best, args, kwargs)


def _smallest(*args: Any, **kwargs: Any) -> Any:
    """`min(...)`."""
    return _extreme(min, lambda new, best: new < best, args, kwargs)


def _extreme(
    plain: Callable[..., Any], is_better: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    values = list(args) if len(args) > 1 else args[0]
    if isinstance(values, list | tuple) and not kwargs and any(map(is_open, values)):
        from penstock.capture.converted.branches import if_exp

        best, *others = values
        for value in others:
            better = is_better(value, best)
            best = if_exp(better, lambda value=value: value, lambda best=best: best)  # type: ignore[misc]
        return best
    return plain(*args, **kwargs)


def _total(values: Any, /, start: Any = 0) -> Any:
    """`sum(values, start)`."""
    tracer = active_tracer()
    if tracer is None or not is_traced_source(values):
        return sum(values, start)
    if isinstance(values, TracedList):
        values = values.stack()
    if not isinstance(values, torch.Tensor):
        return sum(values, start)
    return record(tracer, torch.Tensor.sum, (tracer.tensor(values), 0), {}) + start


def _any(values: Any, /) -> Any:
    """`any(values)`."""
    return _quantified(values, any, torch.Tensor.any, is_and=False)


def _all(values: Any, /) -> Any:
    """`all(values)`."""
    return _quantified(values, all, torch.Tensor.all, is_and=True)


def _quantified(values: Any, plain: Any, reduce: Any, *, is_and: bool) -> Any:
    tracer = active_tracer()
    if tracer is None:
        return plain(values)
    if isinstance(values, TracedList):
        values = values.stack()
    if isinstance(values, torch.Tensor):
        return record(tracer, reduce, (tracer.tensor(values),), {})
    found: Any = is_and
    for value in values:
        if is_and:
            found = not_(or_(not_(found), lambda value=value: not_(value)))  # type: ignore[misc]
        else:
            found = or_(found, lambda value=value: value)  # type: ignore[misc]
        if not is_open(found) and bool(found) is not is_and:
            return bool(found)
    return found if is_open(found) else bool(found)


def _as_list(*args: Any) -> Any:
    """`list(values)`."""
    if len(args) == 1 and isinstance(args[0], TracedList):
        return args[0].copy()
    return list(*args)


def _stack(*args: Any, **kwargs: Any) -> Any:
    """`torch.stack(values, dim)`."""
    if not args or not isinstance(args[0], TracedList):
        return torch.stack(*args, **kwargs)
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    stacked = args[0].stack()
    return stacked if dim == 0 else torch.movedim(stacked, 0, dim)


def _concatenate(*args: Any, **kwargs: Any) -> Any:
    """`torch.cat(values, dim)`."""
    if not args or not isinstance(args[0], TracedList):
        return torch.cat(*args, **kwargs)
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    stacked = args[0].stack()
    dim = dim % (stacked.dim() - 1)
    return torch.movedim(stacked, 0, dim).flatten(dim, dim + 1)


def _is_number(value: Any) -> bool:
    return active_tracer() is not None and isinstance(value, torch.Tensor) and is_open(value)


def _tracer() -> Any:
    return active_tracer()


_REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    builtins.range: traced_range,
    builtins.enumerate: traced_enumerate,
    builtins.zip: traced_zip,
    builtins.reversed: traced_reversed,
    builtins.len: length,
    builtins.int: _whole,
    builtins.float: _floating,
    builtins.bool: _truth,
    builtins.max: _largest,
    builtins.min: _smallest,
    builtins.sum: _total,
    builtins.any: _any,
    builtins.all: _all,
    builtins.list: _as_list,
    torch.stack: _stack,
    torch.cat: _concatenate,
    torch.concat: _concatenate,
}


def replacement_of(function: Any) -> Any:
    """What converted code calls for one of Python's own functions; itself where there is none."""
    try:
        return _REPLACEMENTS.get(function, function)
    except TypeError:
        return function
