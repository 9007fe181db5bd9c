"""Which functions that converted code calls are converted too.

User code is: functions, methods, partials, objects with `__call__`, and modules whose forward is
user code; the models of `penstock.nn` are written like it. What else belongs to this package, to
torch, numpy or the standard library is called as it is.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

from torch import nn

from penstock.capture.active import active_tracer
from penstock.capture.converted.builtin_functions import replacement_of
from penstock.capture.converted.effects import changes_by_call
from penstock.capture.user_code import MODELS, is_user_code
from penstock.conversion.compile import converted_function, is_generated
from penstock.conversion.names import MUTATORS

#: The attribute that `ps.do_not_convert` sets.
OPTED_OUT = "_penstock_do_not_convert"

#: Functions of torch that only call what they are given.
_OPEN_MODULES = (nn.Sequential,)

#: Names of the combinators, whose arguments are user code.
_COMBINATORS = frozenset(["cond", "switch", "while_loop", "scan", "foldl", "foldr", "map_fn"])


def callee(function: Any) -> Any:
    """What to call for `function` in converted code."""
    tracer = active_tracer()
    if tracer is None:
        return function
    if isinstance(function, FunctionType):
        return tracer.recursions.call(tracer, function, _converted_plain(function))
    if isinstance(function, MethodType):
        inner = function.__func__
        if isinstance(inner, FunctionType):
            made = _converted_plain(inner)
            bound = function if made is inner else MethodType(made, function.__self__)
            return tracer.recursions.call(tracer, function, bound)
        return function
    if isinstance(function, type):
        return (
            replacement_of(function) if function.__module__ == "builtins" else _recorded(function)
        )
    if isinstance(function, BuiltinMethodType):
        return _builtin(function)
    if isinstance(function, functools.partial):
        inner = callee(function.func)
        if inner is function.func:
            return function
        return functools.partial(inner, *function.args, **function.keywords)
    if isinstance(function, nn.Module):
        return _converted_module(function)
    return _converted_object(function)


def converted(function: Any) -> Any:
    """The function of a program as it is traced, whatever kind of callable it is."""
    if isinstance(function, MethodType) and isinstance(function.__func__, FunctionType):
        return MethodType(_converted_plain(function.__func__), function.__self__)
    return _converted_plain(function) if isinstance(function, FunctionType) else callee(function)


def _builtin(function: Any) -> Any:
    owner = function.__self__
    if isinstance(owner, list | dict | set) and function.__name__ in MUTATORS:
        changes_by_call(owner, f"{type(owner).__name__}.{function.__name__}")
        return function
    return replacement_of(function)


def _converted_plain(function: FunctionType) -> Any:
    if is_generated(function.__code__):
        return function
    module = function.__module__ or ""
    if module.startswith("penstock.") and not module.startswith(MODELS):
        is_combinator = function.__name__ in _COMBINATORS and ".api." in module
        return _with_converted_arguments(function) if is_combinator else function
    found = replacement_of(function)
    if found is not function:
        return found
    if not is_user_code(function) or getattr(function, OPTED_OUT, False):
        return function
    from penstock.capture.converted import operators

    return converted_function(function, operators)


def _with_converted_arguments(combinator: Callable[..., Any]) -> Callable[..., Any]:
    """A combinator that converts the functions it is given."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return combinator(
            *[_argument(value) for value in args],
            **{name: _argument(value) for name, value in kwargs.items()},
        )

    return call


def _argument(value: Any) -> Any:
    if isinstance(value, FunctionType | MethodType | functools.partial | nn.Module):
        return callee(value)
    if isinstance(value, list | tuple) and value and all(callable(item) for item in value):
        return [_argument(item) for item in value]
    return value


def _converted_module(module: nn.Module) -> Any:
    """A module whose forward is user code, called with its hooks."""
    forward = module.forward
    if not isinstance(forward, MethodType) or not isinstance(forward.__func__, FunctionType):
        return module
    if type(module) in _OPEN_MODULES:
        from penstock.capture.converted import operators

        made: Any = MethodType(converted_function(forward.__func__, operators), module)
    else:
        made = callee(forward)
        if getattr(made, "__func__", None) is forward.__func__:
            return module
    return functools.partial(_call_module, module, made)


def _call_module(module: nn.Module, forward: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`module(*args)`, with another forward; hooks run as ever."""
    had_own = "forward" in module.__dict__
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        return module(*args, **kwargs)
    finally:
        if had_own:
            module.__dict__["forward"] = before
        else:
            del module.__dict__["forward"]


def _converted_object(function: Any) -> Any:
    """An object with a `__call__` of its own."""
    call = inspect.getattr_static(type(function), "__call__", None)
    if isinstance(call, FunctionType) and is_user_code(call):
        made = _converted_plain(call)
        return function if made is call else MethodType(made, function)
    return function


def _recorded(cls: type) -> Any:
    """A class; the objects that a traced body makes are its own to change."""
    tracer = active_tracer()
    if tracer is None or tracer.scope.parent is None:
        return cls
    scope = tracer.scope

    def make(*args: Any, **kwargs: Any) -> Any:
        return scope.own(cls(*args, **kwargs))

    return make
