"""The C++ kernels of generated code: where they are in memory, and what they take.

Python knows a kernel as a function of an extension module of its own, in which the C function is
called `kernel`. Its parameters are listed in the generated source.
"""

from __future__ import annotations

import ast
import ctypes
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from penstock.run.strips.sizes import Refused


@dataclass(frozen=True, slots=True)
class Kernel:
    """A C function."""

    address: int
    #: Their types in C.
    parameters: tuple[str, ...]
    #: What keeps it in memory.
    kept: tuple[object, ...]


def kernels_of(function: FunctionType) -> dict[str, Kernel]:
    """The kernels that a generated function may call, by name."""
    source = Path(function.__code__.co_filename).read_text(encoding="utf-8")
    return {
        name: _kernel(function.__globals__[name], parameters)
        for name, parameters in _declared(source).items()
    }


def _kernel(binding: Any, parameters: tuple[str, ...]) -> Kernel:
    module = binding.__self__
    library = ctypes.CDLL(module.__file__)
    address = ctypes.cast(library.kernel, ctypes.c_void_p).value
    if address is None:
        raise Refused("a kernel without an address")
    return Kernel(address, parameters, (module, library))


def _declared(source: str) -> dict[str, tuple[str, ...]]:
    """The parameters of each kernel."""
    declared = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            maker, target = node.value.func, node.targets[0]
            is_kernel = isinstance(maker, ast.Attribute) and maker.attr == "cpp_pybinding"
            if is_kernel and isinstance(target, ast.Name):
                declared[target.id] = tuple(ast.literal_eval(node.value.args[0]))
    return declared
