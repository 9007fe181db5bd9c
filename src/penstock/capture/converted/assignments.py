"""Augmented assignment and reads by index, where a traced value is among the operands."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from penstock.capture.active import active_tracer
from penstock.capture.converted.decisions import is_open
from penstock.capture.converted.effects import changes_by_call
from penstock.capture.converted.lists import TracedList
from penstock.capture.recording import record
from penstock.capture.traced_tensor import TracedTensor

_IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.iadd,
    "Sub": operator.isub,
    "Mult": operator.imul,
    "Div": operator.itruediv,
    "FloorDiv": operator.ifloordiv,
    "Mod": operator.imod,
    "Pow": operator.ipow,
    "MatMult": operator.imatmul,
    "BitAnd": operator.iand,
    "BitOr": operator.ior,
    "BitXor": operator.ixor,
    "LShift": operator.ilshift,
    "RShift": operator.irshift,
}
_PLAIN: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mult": operator.mul,
    "Div": operator.truediv,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Pow": operator.pow,
    "MatMult": operator.matmul,
    "BitAnd": operator.and_,
    "BitOr": operator.or_,
    "BitXor": operator.xor,
    "LShift": operator.lshift,
    "RShift": operator.rshift,
}


def augmented(name: str, left: Any, right: Any) -> Any:
    """`left += right`, and so on; a value of a traced body is replaced, not changed."""
    tracer = active_tracer()
    if tracer is None:
        return _IN_PLACE[name](left, right)
    if isinstance(left, TracedList):
        left.extend(right)
        return left
    if isinstance(left, list | dict | set):
        changes_by_call(left, f"{type(left).__name__} {name.lower()}")
        return _IN_PLACE[name](left, right)
    if not isinstance(left, TracedTensor) or not _is_body_value(tracer, left):
        return _IN_PLACE[name](left, right)
    made = _PLAIN[name](left, right)
    dtype = left.traced.fakes[0].dtype
    if isinstance(made, TracedTensor) and made.traced.fakes[0].dtype is not dtype:
        return _IN_PLACE[name](left, right)
    return made


def set_item(container: Any, index: Any, value: Any) -> Any:
    """`container[index] = value`; a tensor from outside of a traced body is replaced."""
    tracer = active_tracer()
    if (
        tracer is not None
        and isinstance(container, TracedTensor)
        and _is_body_value(tracer, container)
    ):
        if isinstance(index, torch.Tensor) and is_open(index) and index.dim() == 0:
            position = index.reshape(1)
            written = tracer.tensor(value).to(container.traced.fakes[0].dtype)
            return record(tracer, torch.Tensor.index_put, (container, (position,), written), {})
        container = record(tracer, torch.Tensor.clone, (container,), {})
    container[index] = value
    return container


def _is_body_value(tracer: Any, tensor: TracedTensor) -> bool:
    """Whether a tensor came into a branch or loop body from outside, but not into the function."""
    facts = tensor.traced
    if facts.scope is tracer.scope and not facts.is_input:
        return False
    return tracer.scope.parent is not None and not (facts.is_input and facts.scope.parent is None)


def item(container: Any, index: Any) -> Any:
    """`container[index]`; a traced index into a Python list chooses like `ps.switch`."""
    tracer = active_tracer()
    if tracer is None or not isinstance(index, torch.Tensor) or not is_open(index):
        return container[index]
    if not isinstance(container, list | tuple | nn.ModuleList) or not len(container):
        return container[index]
    elements = list(container)
    if all(callable(element) for element in elements):
        return _Chosen(index, elements)
    return tracer.switch(index, [partial(_itself, element) for element in elements], ())


def _itself(value: Any) -> Any:
    return value


class _Chosen:
    """One of several functions, chosen by a traced number."""

    def __init__(self, index: Any, functions: list[Any]) -> None:
        self._index, self._functions = index, functions

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from penstock.capture.converted.callees import callee

        tracer = active_tracer()
        assert tracer is not None
        branches = [partial(callee(function), *args, **kwargs) for function in self._functions]
        return tracer.switch(self._index, branches, ())
