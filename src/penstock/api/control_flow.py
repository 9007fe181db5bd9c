"""Branches and loops: `cond`, `switch`, `while_loop`.

Inside a traced function each of them is recorded by the tracer. Anywhere else it runs in plain
Python, one branch and one iteration after the other: that is the meaning which every other way to
run must keep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from penstock.api.carried import Carried
from penstock.api.element_types import explore, is_unknown
from penstock.api.predicates import Scalar, branch_number, truth
from penstock.capture import eager_keys
from penstock.capture.active import active_tracer
from penstock.capture.leaves import as_values
from penstock.capture.location import user_line
from penstock.errors import ArgumentError, report


def cond(
    pred: Scalar,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: Any = (),
) -> Any:
    """Run one of two functions, depending on a value.

    It equals::

        true_fn(*operands) if pred else false_fn(*operands)

    Arguments:
        pred: a tensor with one element, or a Python bool or number. NaN is an error.
        true_fn, false_fn: functions of the operands. In a graph both must return the same
            structure, dtypes and shapes. They may also use variables of the enclosing function.
        operands: a tuple or list of values, spread over the parameters; any other value is the one
            argument. Python numbers become 0-d tensors, here and in what is returned.

    Gradients flow through the branch that was taken. What only the other branch reads gets none.

    >>> x = torch.tensor(-3.0)
    >>> cond(x < 0, lambda x: -x, lambda x: x, (x,))
    tensor(3.)
    """
    operands = _spread(operands)
    tracer = active_tracer()
    if tracer is not None:
        return tracer.cond(pred, true_fn, false_fn, operands)
    branches = (true_fn, false_fn)
    if is_unknown(pred):
        return _run_branch("cond", lambda *values: explore(branches, values), operands)
    is_true = truth(pred, "cond: pred")
    with eager_keys.branch(int(is_true)):
        return _run_branch("cond", true_fn if is_true else false_fn, operands)


def switch(index: Scalar, branches: Sequence[Callable[..., Any]], operands: Any = ()) -> Any:
    """Run one of several functions, chosen by its number.

    It equals the following, except that negative numbers are errors too::

        branches[index](*operands)

    Arguments:
        index: which branch to run, from 0 to `len(branches) - 1`; an int or an integer tensor with
            one element.
        branches: functions of the operands. In a graph all must return the same structure, dtypes
            and shapes.
        operands: as for `cond`.

    Gradients flow through the branch that was taken. What only other branches read gets none.

    >>> switch(1, [torch.sin, torch.square, torch.cos], (torch.tensor(3.0),))
    tensor(9.)
    """
    operands = _spread(operands)
    if not branches:
        raise ArgumentError(
            report(
                "switch: there must be at least one branch.",
                where=user_line(),
                facts=[("branches", "0"), ("expected", "1 or more")],
                todo="Pass the functions to choose from as a list.",
            )
        )
    tracer = active_tracer()
    if tracer is not None:
        return tracer.switch(index, branches, operands)
    if is_unknown(index):
        return _run_branch("switch", lambda *values: explore(branches, values), operands)
    number = branch_number(index, len(branches))
    with eager_keys.branch(number):
        return _run_branch("switch", branches[number], operands)


def while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Any,
    *,
    maximum_iterations: int | torch.Tensor | None = None,
    parallel_iterations: int | None = None,
) -> Any:
    """Repeat a function on its own result while a condition holds.

    It equals::

        state = carried_inputs
        iterations = 0
        while iterations < maximum_iterations and cond_fn(*state):
            state = body_fn(*state)
            iterations += 1
        return state

    Arguments:
        cond_fn: the condition, a function of the state; its value is read as `cond` reads `pred`.
        body_fn: one iteration, from the state to the next state. It must keep structure, dtypes,
            shapes and devices.
        carried_inputs: the initial state. A plain tuple or list is spread over the parameters of
            both functions, any other nested value (dict, NamedTuple, dataclass, tensor) is their
            one argument. The result has the same form. Python numbers become 0-d tensors.
        maximum_iterations: end the loop after so many iterations, whatever the condition says.
        parallel_iterations: how many iterations of one loop may be in flight at once; None for no
            bound. It changes memory and speed, never the result.

    Gradients flow through the iterations that ran, from the result back to `carried_inputs` and to
    everything that `body_fn` reads. None flow through the condition. A loop that does not run
    passes them on unchanged.

    >>> def halve(x, steps):
    ...     return x / 2, steps + 1
    >>> while_loop(lambda x, steps: x > 1, halve, (torch.tensor(10.0), 0))
    (tensor(0.6250), tensor(4))
    """
    _check_bound("maximum_iterations", maximum_iterations, 0)
    _check_bound("parallel_iterations", parallel_iterations, 1)
    tracer = active_tracer()
    if tracer is not None:
        return tracer.while_loop(
            cond_fn, body_fn, carried_inputs, maximum_iterations, parallel_iterations
        )
    state = Carried(carried_inputs, loop="while_loop", function="body_fn", fn=body_fn)
    limit = math.inf if maximum_iterations is None else int(maximum_iterations)
    site = eager_keys.next_site()
    iterations = 0
    while iterations < limit and _goes_on(cond_fn, state, site, iterations):
        with eager_keys.body(site, iterations):
            state.advance(body_fn(*state.arguments))
        iterations += 1
    return state.value


def _goes_on(cond_fn: Callable[..., Any], state: Carried, site: int, iteration: int) -> bool:
    with eager_keys.condition(site, iteration):
        pred = cond_fn(*state.arguments)
    return not is_unknown(pred) and truth(pred, "while_loop: what cond_fn returns")


def _run_branch(name: str, branch: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    operands = as_values(operands, f"{name}: operands", "operands")
    return as_values(branch(*operands), f"{name}: what a branch returns", "result")


def _spread(operands: Any) -> tuple[Any, ...]:
    return tuple(operands) if type(operands) in (tuple, list) else (operands,)


def _check_bound(name: str, bound: Any, least: int) -> None:
    if isinstance(bound, int) and bound < least:
        raise ArgumentError(
            report(
                f"while_loop: {name} is too small.",
                where=user_line(),
                facts=[(name, str(bound)), ("least", str(least))],
                todo=f"Pass {least} or more, or None for no bound.",
            )
        )
