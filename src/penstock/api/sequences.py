"""Functions over the elements of sequences: `scan`, `foldl`, `foldr`, `map_fn`.

A sequence is a tensor, taken apart along its first dimension, or a TensorArray; a nested value of
sequences of one length is a sequence of nested elements. Traced like `control_flow`; the plain
Python runs here give the meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.api.carried import Carried
from penstock.api.element_types import output_types
from penstock.api.elements import Elements, stack_results
from penstock.capture import eager_keys
from penstock.capture.active import active_tracer
from penstock.capture.leaves import as_values
from penstock.capture.sequences import as_pair


def scan(
    combine_fn: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, *, reverse: bool = False
) -> tuple[Any, Any]:
    """Carry a state along a sequence and collect one result per element.

    It equals::

        carry, ys = init, []
        for x in xs:                            # reversed(xs) where reverse=True
            carry, y = combine_fn(carry, x)
            ys.append(y)                        # ys.insert(0, y) where reverse=True
        return carry, torch.stack(ys)

    Arguments:
        combine_fn: from the state and an element to the next state, of the same types, and a
            result, of the same types for every element.
        init: the initial state, any nested value. Python numbers become 0-d tensors.
        xs: a tensor, or a nested value of tensors with one length, taken apart along dimension 0.
        reverse: start at the last element; `ys` stays in the order of `xs`.

    For an empty sequence `ys` is empty, with the types that `combine_fn` would return.

    Gradients flow from the last state and from every result back to `init`, `xs` and what
    `combine_fn` reads.

    >>> import torch
    >>> scan(lambda total, x: (total + x, total * x), 1, torch.tensor([2, 3, 4]))
    (tensor(10), tensor([ 2,  9, 24]))
    """
    tracer = active_tracer()
    if tracer is not None:
        traced: tuple[Any, Any] = tracer.scan(combine_fn, init, xs, reverse)
        return traced
    elements = Elements(xs, "scan")
    state = Carried(init, loop="scan", function="combine_fn", fn=combine_fn)
    site = eager_keys.next_site()

    def step(iteration: int, x: Any) -> Any:
        with eager_keys.body(site, iteration):
            carry, y = as_pair(combine_fn(state.value, x))
        state.advance(carry)
        return as_values(y, "scan: what combine_fn returns", "y")

    if elements.length == 0:
        _, y = as_pair(output_types(combine_fn, "scan", lambda: (state.value, elements.empty())))
        return state.value, stack_results([], as_values(y, "scan", "y"), "scan")
    order = reversed(elements) if reverse else elements
    results = [step(iteration, x) for iteration, x in enumerate(order)]
    return state.value, stack_results(results[::-1] if reverse else results, results[0], "scan")


def foldl(fn: Callable[[Any, Any], Any], xs: Any, init: Any) -> Any:
    """Combine the elements of a sequence with a function, from the first to the last.

    It equals::

        acc = init
        for x in xs:
            acc = fn(acc, x)
        return acc

    Arguments:
        fn: from what was combined so far and an element to the next value, of the same types.
        xs: a tensor, or a nested value of tensors with one length, taken apart along dimension 0.
        init: the initial value, and the result for an empty sequence. Python numbers become 0-d
            tensors.

    Gradients flow back to `init`, `xs` and what `fn` reads.

    >>> import torch
    >>> foldl(lambda acc, x: 10 * acc + x, torch.tensor([1, 2, 3]), 0)
    tensor(123)
    """
    tracer = active_tracer()
    if tracer is not None:
        return tracer.foldl(fn, xs, init)
    return _fold(fn, Elements(xs, "foldl"), init, "foldl")


def foldr(fn: Callable[[Any, Any], Any], xs: Any, init: Any) -> Any:
    """Combine the elements of a sequence with a function, from the last to the first.

    It equals::

        acc = init
        for x in reversed(xs):
            acc = fn(acc, x)
        return acc

    Arguments and gradients are those of `foldl`; `fn` takes what was combined so far first here
    too.

    >>> import torch
    >>> foldr(lambda acc, x: 10 * acc + x, torch.tensor([1, 2, 3]), 0)
    tensor(321)
    """
    tracer = active_tracer()
    if tracer is not None:
        return tracer.foldr(fn, xs, init)
    return _fold(fn, reversed(Elements(xs, "foldr")), init, "foldr")


def map_fn(fn: Callable[[Any], Any], xs: Any) -> Any:
    """Apply a function to every element of a sequence, to all of them at once where possible.

    It equals::

        torch.stack([fn(x) for x in xs])

    Arguments:
        fn: a function of one element; no element sees another.
        xs: a tensor, or a nested value of tensors with one length, taken apart along dimension 0.

    The result has the structure that `fn` returns, each tensor stacked along a new first dimension;
    where the shapes of one tensor differ between elements, a TensorArray stands in its place. For
    an empty sequence it is empty, with the types that `fn` would return.

    Gradients flow from every result back to its element and to what `fn` reads.

    >>> import torch
    >>> map_fn(lambda x: x * x, torch.tensor([1, 2, 3]))
    tensor([1, 4, 9])
    """
    tracer = active_tracer()
    if tracer is not None:
        return tracer.map_fn(fn, xs)
    elements = Elements(xs, "map_fn")
    site = eager_keys.next_site()

    def result(number: int, x: Any) -> Any:
        with eager_keys.body(site, number):
            return as_values(fn(x), "map_fn: what fn returns", "result")

    if elements.length == 0:
        example = output_types(fn, "map_fn", lambda: (elements.empty(),))
        return stack_results([], as_values(example, "map_fn", "result"), "map_fn")
    results = [result(number, x) for number, x in enumerate(elements)]
    return stack_results(results, results[0], "map_fn", ragged=True)


def _fold(fn: Callable[[Any, Any], Any], elements: Iterable[Any], init: Any, loop: str) -> Any:
    state = Carried(init, loop=loop, function="fn", fn=fn)
    site = eager_keys.next_site()
    for iteration, x in enumerate(elements):
        with eager_keys.body(site, iteration):
            state.advance(fn(state.value, x))
    return state.value
