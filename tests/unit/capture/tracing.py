"""Trace a function, run its program with the reference interpreter, compare with the function."""

from __future__ import annotations

from typing import Any

import torch

from penstock.api.batches import one_instance
from penstock.api.columns import InputColumn
from penstock.api.entries import Entry
from penstock.api.function import Function, function
from penstock.calls.structure import flatten, flatten_like
from penstock.testing.interpreter import interpret


def entry_of(fn: Any, *args: Any, **kwargs: Any) -> Entry:
    traced = fn if isinstance(fn, Function) else function(fn)
    return traced._entry(args, kwargs)


def interpreted(fn: Any, *args: Any, **kwargs: Any) -> Any:
    traced = fn if isinstance(fn, Function) else function(fn)
    entry = traced._entry(args, kwargs)
    batch = one_instance(*traced._callee.bind(args, kwargs), traced._names)
    inputs = [leaf.values[0] for leaf in batch.leaves if isinstance(leaf, InputColumn)]
    captures = [
        capture.fetch() if capture.shared is None else batch.shared[capture.shared].tensor
        for capture in entry.traced.captures
    ]
    return entry.traced.rebuild(interpret(entry.program, inputs, captures))


def assert_agrees(fn: Any, *args: Any, **kwargs: Any) -> Entry:
    """The traced program computes what the Python function computes."""
    plain = fn.__wrapped__ if isinstance(fn, Function) else fn
    expected, structure = flatten(plain(*args, **kwargs))
    found = flatten_like(structure, interpreted(fn, *args, **kwargs))
    for left, right in zip(found, expected, strict=True):
        if isinstance(left, torch.Tensor):
            torch.testing.assert_close(left, torch.as_tensor(right))
        else:
            assert left == right
    return entry_of(fn, *args, **kwargs)


def operations(entry: Entry) -> list[str]:
    """The kinds of nodes of the program, torch calls by name."""
    return [
        getattr(node.operation, "name", type(node.operation).__name__)
        for function in entry.program.functions
        for node in function.body.walk()
    ]
