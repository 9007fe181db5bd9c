"""Whether a function or method may be recorded as one step: it reads only what can be guarded, and
writes nothing but its own variables.

The bytecode says which paths are read and called (`bytecode`); here they are followed to the
objects they lead to now. The verdict holds as long as guards on what was watched hold. What is not
understood is not pure.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from penstock.capture.lazy.bytecode import find_effects, place
from penstock.capture.lazy.called_names import (
    PURE_CONTEXTS,
    UNSTEADY_ATTRIBUTES,
    is_harmless_member,
    is_pure_library_function,
)
from penstock.capture.lazy.guarded_values import PLAIN_TENSORS, SIMPLE_TYPES, original_of
from penstock.capture.lazy.lookup import CONTAINERS, UNKNOWN, Lookup, Member, NotPure
from penstock.capture.lazy.module_facts import has_hooks
from penstock.capture.lazy.seen import Path, shown
from penstock.capture.lazy.watched import Watched
from penstock.ir.program import Program, TorchCall

#: Where a function that was marked as a unit says so.
MARK = "_penstock_unit"

#: Methods of every module that only look at it.
_LOOKING = frozenset(
    [
        "parameters",
        "named_parameters",
        "buffers",
        "named_buffers",
        "children",
        "named_children",
        "modules",
        "named_modules",
        "get_parameter",
        "get_buffer",
        "get_submodule",
    ]
)


#: Where torch keeps modules that talk to other processes or compile.
_ACTING_MODULES = ("torch.jit", "torch._dynamo", "torch.nn.parallel", "torch.distributed")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """Whether a function is pure."""

    is_pure: bool
    #: What speaks against it, such as "writes self.count at model.py:12"; empty where it is pure.
    reason: str
    #: What it reads besides its arguments.
    reads: Watched


def judge(function: Any, owner: Any = None) -> Verdict:
    """Whether a function, a method of `owner`, or the call of a module is pure."""
    judgement = _Judgement()
    try:
        if isinstance(function, nn.Module):
            judgement.check_module(function)
        else:
            judgement.check_function(original_of(function), owner)
    except NotPure as problem:
        return Verdict(False, str(problem), judgement.watched)
    except Exception as error:  # looking at objects of the user's may run code of theirs
        reason = f"could not be examined ({type(error).__name__}: {error})"
        return Verdict(False, reason, judgement.watched)
    return Verdict(True, "", judgement.watched)


def torch_calls(program: Program) -> list[str]:
    """The names of the torch calls of a straight-line program, in order."""
    return [
        node.operation.name
        for node in program.entry.body.walk()
        if isinstance(node.operation, TorchCall)
    ]


def first_difference(first: Sequence[str], second: Sequence[str]) -> str | None:
    """Where two traces of the same call differ, in words; None where they are the same."""
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return f"call {number} was {one}, then {other}"
    if len(first) != len(second):
        return f"{len(first)} torch calls, then {len(second)}"
    return None


class _Judgement:
    """One verdict in the making."""

    def __init__(self) -> None:
        self.watched = Watched()
        #: Functions and owners that are being checked, innermost last, and those that passed.
        self._open: list[tuple[Any, int]] = []
        self._passed: set[tuple[Any, int]] = set()

    def check_function(self, function: Any, owner: Any) -> None:
        """Raise unless the function is pure."""
        if not isinstance(function, FunctionType):
            raise NotPure(f"{_named(function)} is not a Python function")
        code = function.__code__
        key = (code, id(owner))
        if key in self._passed:
            return
        if key in self._open:
            raise NotPure(f"{code.co_qualname} calls itself")
        findings = find_effects(code, owner is not None)
        if findings.reason is not None:
            raise NotPure(findings.reason.removeprefix("it "))
        _check_defaults(function)
        self._open.append(key)
        self._check_paths(function, owner)
        self._open.pop()
        self._passed.add(key)

    def _check_paths(self, function: FunctionType, owner: Any) -> None:
        findings = find_effects(function.__code__, owner is not None)
        lookup = Lookup(function, owner, self.watched, self.check_function)
        for paths, check in (
            (findings.contexts, _check_context),
            (findings.makers, _check_maker),
            (findings.calls, self._check_call),
            (findings.reads, self._check_read),
        ):
            for path in sorted(paths, key=repr):
                try:
                    for value in lookup.values(path):
                        check(value, path)
                except NotPure as problem:
                    raise _located(problem, findings.lines.get(path)) from None

    def check_module(self, module: nn.Module) -> None:
        """Raise unless a call of the module is pure."""
        for inner in module.modules():
            if type(inner).__module__.startswith(_ACTING_MODULES):
                raise NotPure(f"calls a {type(inner).__name__}, which does more than compute")
            if has_hooks(inner):
                raise NotPure(f"calls {type(inner).__name__}, which has hooks")
            self.watched.callers.setdefault(id(inner), inner)
            if is_of_torch(inner):
                self.watched.add_module(inner)
        if is_of_torch(module):
            for inner in module.children():
                self.check_module(inner)
            return
        if type(module).__call__ is not nn.Module.__call__:
            raise NotPure(f"calls {type(module).__name__}, which has a __call__ of its own")
        forward: Any = module.forward
        owner = getattr(forward, "__self__", None)
        if _is_program(forward):
            forward, owner = forward.__wrapped__, forward._instance
        self.check_function(original_of(getattr(forward, "__func__", forward)), owner)

    def _check_call(self, value: Any, path: Path) -> None:
        if value is UNKNOWN:
            raise NotPure(f"calls {shown(path)}, which is computed")
        if isinstance(value, Member):
            if not is_harmless_member(value.base, value.name):
                raise NotPure(f"calls {shown(path)}, which changes what it is called on")
        elif isinstance(value, MethodType):
            self._check_method(value, path)
        elif isinstance(value, nn.Module):
            self.check_module(value)
        elif isinstance(value, type):
            _check_class(value, path)
        elif is_pure_library_function(value) or _is_context(value):
            return
        elif _is_program(value):
            self.check_function(value.__wrapped__, value._instance)
        elif isinstance(value, FunctionType) and not _is_library(value):
            if MARK not in value.__dict__:
                self.check_function(value, None)
        else:
            raise NotPure(f"calls {shown(path)}, of which nothing is known")

    def _check_method(self, method: MethodType, path: Path) -> None:
        function, owner = original_of(method.__func__), method.__self__
        if _is_library(function):
            if not isinstance(owner, nn.Module):
                raise NotPure(f"calls {shown(path)}, of which nothing is known")
            if function.__name__ == "forward":
                self.check_module(owner)
                return
            if function.__name__ not in _LOOKING:
                raise NotPure(f"calls {shown(path)}, which acts on the module")
            self.watched.add_module(owner)
            return
        if MARK not in function.__dict__:
            self.check_function(function, owner)

    def _check_read(self, value: Any, path: Path, depth: int = 3) -> None:
        if value is UNKNOWN or isinstance(value, SIMPLE_TYPES):
            return
        if isinstance(value, Member):
            if value.name in UNSTEADY_ATTRIBUTES:
                raise NotPure(f"reads {shown(path)}, which torch changes")
        elif isinstance(value, torch.Tensor):
            if type(value) not in PLAIN_TENSORS:
                raise NotPure(f"reads {shown(path)}, which is a recorded tensor")
        elif isinstance(value, nn.Module):
            self.check_module(value)
            self.watched.add_module(value)
        elif isinstance(value, CONTAINERS) and depth:
            self.watched.add_container(value)
            for item in (*value, *(value.values() if isinstance(value, dict) else ())):
                self._check_read(item, path, depth - 1)
        elif isinstance(value, type | ModuleType) or is_pure_library_function(value):
            return
        elif isinstance(value, FunctionType | MethodType):
            self._check_call(value, path)
        else:
            raise NotPure(f"reads {shown(path)}, a {type(value).__name__}")


def is_of_torch(value: Any) -> bool:
    """Whether a module is one of torch's own, used as it is."""
    return type(value).__module__.split(".")[0] == "torch" and "forward" not in vars(value)


def _is_library(function: Any) -> bool:
    module = getattr(function, "__module__", None) or ""
    return module.split(".")[0] in ("torch", "penstock", "numpy")


def _is_program(value: Any) -> bool:
    """Whether `value` is a `ps.function`; its class is above this folder."""
    return type(value).__module__ == "penstock.api.function"


def _is_context(value: Any) -> bool:
    return any(value is context for context in PURE_CONTEXTS)


def _check_context(value: Any, path: Path) -> None:
    if not _is_context(value):
        raise NotPure(f"enters {shown(path)}")


def _check_maker(value: Any, path: Path) -> None:
    if isinstance(value, Member) or is_pure_library_function(value):
        return
    raise NotPure(f"changes what {shown(path)} returned")


def _check_class(kind: type, path: Path) -> None:
    """Classes whose instances are made without running code of the user's."""
    if _is_context(kind) or is_pure_library_function(kind):
        return
    if issubclass(kind, BaseException | enum.Enum):
        return
    is_plain = dataclasses.is_dataclass(kind) and not hasattr(kind, "__post_init__")
    if is_plain or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return
    raise NotPure(f"makes a {kind.__name__} ({shown(path)})")


def _check_defaults(function: FunctionType) -> None:
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        is_plain = isinstance(value, SIMPLE_TYPES) or callable(value) or value == ()
        if not is_plain:
            raise NotPure(f"has a default argument that is a {type(value).__name__}")


def _located(problem: NotPure, line: str | None) -> NotPure:
    text = str(problem)
    return problem if line is None or " at " in text else NotPure(f"{text} at {line}")


def _named(value: Any) -> str:
    return getattr(value, "__qualname__", None) or f"a {type(value).__name__}"


__all__ = [
    "MARK",
    "Verdict",
    "first_difference",
    "is_of_torch",
    "judge",
    "place",
    "torch_calls",
]
