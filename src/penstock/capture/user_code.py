"""What counts as user code: neither torch's, nor numpy's, nor Python's own, nor ours.

The models of `penstock.nn` are written as a user would write them, and count as such.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from types import FunctionType

from penstock.capture.location import is_library_file

_STANDARD = str(Path(sysconfig.get_paths()["stdlib"])) + os.sep
_INSTALLED = tuple(
    {str(Path(sysconfig.get_paths()[key])) + os.sep for key in ("purelib", "platlib")}
)

#: Packages whose code is never converted, besides that of library files.
_LIBRARIES = frozenset(["numpy", "torch", "penstock", "greenlet", "einops", "pytest", "_pytest"])

#: Where our own code is written as a user would write it.
MODELS = "penstock.nn."


def is_user_code(function: FunctionType) -> bool:
    """Whether a function is neither torch's, nor numpy's, nor Python's own, nor part of ours."""
    file, name = function.__code__.co_filename, str(function.__globals__.get("__name__", ""))
    if name.startswith(MODELS):
        return True
    if is_library_file(file):
        return False
    package = name.split(".")[0]
    if package in _LIBRARIES:
        return False
    is_standard = file.startswith(_STANDARD) and not file.startswith(_INSTALLED)
    return not (is_standard or file.startswith("<frozen") or package in sys.builtin_module_names)


def is_users(module_name: str) -> bool:
    """Whether a module of that name, and so a class of it, is user code."""
    package = module_name.split(".")[0]
    is_ours = module_name.startswith(MODELS)
    return is_ours or not (package in _LIBRARIES or package in sys.stdlib_module_names)


def is_opaque(kind: type) -> bool:
    """Whether objects of this class keep what they hold to themselves."""
    package = (kind.__module__ or "").split(".")[0]
    return package in _LIBRARIES and not kind.__module__.startswith(MODELS)
