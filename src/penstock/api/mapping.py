"""`ps.map`: any function for many instances, as a program or as recorded eager code."""

from __future__ import annotations

from typing import Any

from torch import nn

from penstock.api.eager_code import GRANULARITIES, check_choice, map_eager
from penstock.api.function import Function
from penstock.api.not_compiled import not_compiled
from penstock.api.outputs import check_form
from penstock.api.refusals import errors_need_a_list, not_a_function
from penstock.capture.lazy.active import active_scope


@not_compiled
def map_instances(
    fn: Any,
    *columns: Any,
    out: str = "list",
    granularity: str = "auto",
    on_error: str = "raise",
    **shared: Any,
) -> Any:
    """Run a function for many instances at once: a `ps.function`, or any eager PyTorch code.

    It equals::

        [fn(*row, **shared) for row in zip(*columns)]

    Arguments:
        fn: a `ps.function`, an `nn.Module`, or a Python function for one instance. Eager code runs
            unchanged: its torch calls are recorded and run batched, and where it reads a value
            (`.item()`, `if t > 0`) only that instance waits.
        columns: one per parameter; a list or tuple of values, one for each instance, or a tensor
            with the instances along its first dimension, or `ps.shared(x)`.
        out: "list", "stack" or "pad", as for `Function.map`.
        granularity: what eager code records as one step: every torch call ("op"), module calls
            ("module"), also methods that are proven to have no side effects ("auto"), or all that
            an instance does between two reads ("graph").
        on_error: "raise" an instance's exception, or "return" it in the instance's place.
        shared: arguments by name that are the same for all instances.

    Gradients flow as they would through the calls one by one.
    """
    target = fn.forward if isinstance(fn, nn.Module) else fn
    if not callable(fn):
        raise not_a_function(fn)
    check_form(out)
    check_choice("granularity", granularity, GRANULARITIES)
    check_choice("on_error", on_error, ("raise", "return"))
    if on_error == "return" and out != "list":
        raise errors_need_a_list(out)
    if isinstance(target, Function) and active_scope() is None:
        if on_error == "return":
            return target.map_returning_errors(columns, shared)
        return target.map(*columns, out=out, **shared)
    return map_eager(fn, columns, out, granularity, on_error, shared)
