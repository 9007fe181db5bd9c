"""Which functions and methods a pure function may call, by what they are.

Functions of torch are pure unless they are listed here; so are those of `math` and `operator`. Of
Python's own functions only those listed are.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import operator
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any

import torch
from torch.nn import functional

PURE_BUILTINS = frozenset(
    getattr(builtins, name)
    for name in [
        "abs",
        "all",
        "any",
        "bool",
        "bytes",
        "complex",
        "dict",
        "divmod",
        "enumerate",
        "filter",
        "float",
        "frozenset",
        "getattr",
        "hash",
        "int",
        "isinstance",
        "issubclass",
        "iter",
        "len",
        "list",
        "map",
        "max",
        "min",
        "pow",
        "range",
        "repr",
        "reversed",
        "round",
        "set",
        "slice",
        "sorted",
        "str",
        "sum",
        "tuple",
        "type",
        "zip",
        "super",
    ]
)

#: Containers whose items come from their arguments.
PASSING_BUILTINS = frozenset(["zip", "enumerate", "reversed", "list", "tuple", "iter", "sorted"])

#: What may be entered with `with`.
PURE_CONTEXTS = (
    torch.no_grad,
    torch.enable_grad,
    torch.set_grad_enabled,
    torch.autocast,
    torch.amp.autocast,
    contextlib.nullcontext,
)

#: Methods that change what they are called on, or that act outside of it.
_CHANGING_METHODS = frozenset(
    [
        "append",
        "extend",
        "insert",
        "pop",
        "remove",
        "clear",
        "sort",
        "reverse",
        "update",
        "setdefault",
        "popitem",
        "discard",
        "intersection_update",
        "difference_update",
        "symmetric_difference_update",
        "backward",
        "retain_grad",
        "register_hook",
        "register_post_accumulate_grad_hook",
        "send",
        "throw",
        "close",
        "write",
        "read",
        "readline",
        "share_memory_",
        "requires_grad_",
        "set_",
        "resize_",
        "resize_as_",
        "storage",
        "untyped_storage",
        "data_ptr",
        "__setitem__",
        "__delitem__",
        "__setattr__",
        "__delattr__",
        "rename_",
        "apply_",
        "map_",
    ]
)
_CONTAINERS = (list, dict, set, tuple, str, frozenset)

#: Attributes of tensors that are another thing in a trace, or that torch changes by itself.
UNSTEADY_ATTRIBUTES = frozenset(
    ["grad", "grad_fn", "requires_grad", "is_leaf", "retains_grad", "_version", "_base", "names"]
)

#: Functions of torch that act on more than their arguments.
_ACTING = frozenset(
    [
        "manual_seed",
        "seed",
        "initial_seed",
        "get_rng_state",
        "set_rng_state",
        "save",
        "load",
        "compile",
        "set_num_threads",
        "set_default_dtype",
        "set_default_device",
        "set_default_tensor_type",
        "set_printoptions",
        "set_float32_matmul_precision",
        "set_flush_denormal",
        "use_deterministic_algorithms",
        "set_deterministic_debug_mode",
        "set_warn_always",
        "from_file",
        "from_numpy",
        "frombuffer",
        "is_grad_enabled",
        "is_inference_mode_enabled",
    ]
)


def is_harmless_method(name: str, is_own: bool) -> bool:
    """Whether a method of a value of unknown type leaves it as it is.

    What the function computed itself may be changed by in-place methods of tensors: tracing sees
    to whom the memory belongs.
    """
    if name in _CHANGING_METHODS:
        return False
    is_in_place = name.endswith("_") and not name.endswith("__")
    if is_in_place:
        return is_own and hasattr(torch.Tensor, name)
    if name.startswith("__i") and name.endswith("__") and name not in ("__invert__", "__int__"):
        return False
    return hasattr(torch.Tensor, name) or any(hasattr(kind, name) for kind in _CONTAINERS)


#: Methods of lists, dicts and sets that leave them as they are.
_LOOKING_METHODS = frozenset(
    [
        "index",
        "count",
        "copy",
        "get",
        "keys",
        "values",
        "items",
        "union",
        "intersection",
        "difference",
        "issubset",
        "issuperset",
        "isdisjoint",
    ]
)


def is_harmless_member(base: Any, name: str) -> bool:
    """The same for a value that is known, and that the function did not make."""
    if isinstance(base, list | dict | set):
        return name in _LOOKING_METHODS
    return is_harmless_method(name, False)


def is_method_of_containers(name: str) -> bool:
    """Whether lists, dicts or sets have such a method."""
    return any(hasattr(kind, name) for kind in _CONTAINERS)


_ROOTS = ("torch", "math", "operator", "_operator")


def is_library_module(module: Any) -> bool:
    """Whether names looked up in a Python module never change."""
    return isinstance(module, ModuleType) and module.__name__.split(".")[0] in _ROOTS


def is_pure_library_function(value: Any) -> bool:
    """Whether `value` is a function of torch, math or Python that acts on nothing else."""
    if isinstance(value, type):
        return value in PURE_BUILTINS or value in (torch.Size, torch.device)
    if _is_hashable(value) and value in PURE_BUILTINS:
        return True
    name = getattr(value, "__name__", "")
    if name in _ACTING or (name.endswith("_") and not name.endswith("__")):
        return False
    if isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return not value.__name__.endswith("_")
    if getattr(torch, name, None) is value or getattr(functional, name, None) is value:
        return True
    if not isinstance(value, FunctionType | BuiltinFunctionType | MethodDescriptorType):
        return False
    home = getattr(value, "__self__", None)
    if isinstance(home, ModuleType):
        return home in (math, operator) or _is_torch_name(home.__name__)
    return _is_torch_name(getattr(value, "__module__", None) or "") or _is_tensor_method(value)


def _is_torch_name(module: str) -> bool:
    """Whether functions of that module compute with tensors."""
    return module in ("torch", "torch.functional", "torch.nn.functional", "torch._C._nn") or (
        module.startswith(("torch.linalg", "torch.special", "torch.fft", "torch._C._VariableF"))
    )


def _is_tensor_method(value: Any) -> bool:
    name = getattr(value, "__name__", "")
    return getattr(torch.Tensor, name, None) is value and name not in _CHANGING_METHODS


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
