"""`penstock explain` and `penstock view`: run a function of a file on its examples, and show it.

The file says with `example_inputs` what the function is run on; nothing else of it is looked at.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import penstock as ps
from penstock.errors import ArgumentError, PenstockError, report
from penstock.profiling.profile import Profile

#: What a file names its inputs.
EXAMPLES = "example_inputs"


def run_explain(target: str) -> int:
    """Print the program, the table of what ran, and what limited batching; the exit status."""
    return _reported("explain", lambda: _explain(target))


def run_view(target: str, output: Path) -> int:
    """Write the page of a function; the exit status."""
    return _reported("view", lambda: _view(target, output))


def _explain(target: str) -> None:
    profile = profile_target(target)
    programs = {str(call.program): None for call in profile.calls if call.program is not None}
    print("\n\n".join([*programs, profile.summary(), profile.explain()]))


def _view(target: str, output: Path) -> None:
    profile = profile_target(target)
    profile.save_html(output)
    print(f"written: {output}")


def _reported(command: str, work: Any) -> int:
    """Do it; whatever fails is told in one place, with exit status 1."""
    try:
        work()
    except PenstockError as error:
        print(f"penstock {command}: {error}", file=sys.stderr)
        return 1
    except Exception as error:  # the user's file may raise anything
        told = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
        print(f"penstock {command}: the file failed.", *told, sep="\n  ", file=sys.stderr)
        return 1
    return 0


def profile_target(target: str) -> Profile:
    """What runs when `FILE.py:function` gets its example inputs."""
    path, _, name = target.rpartition(":")
    if not path or not name:
        raise ArgumentError(
            report(
                "no function is named.",
                facts=[("given", target), ("form", "FILE.py:function or FILE.py:model.forward")],
                todo="Name the file, a colon, and the function in it.",
            )
        )
    module = _load(Path(path))
    function = _find(module, name, path)
    inputs = _inputs(module, name, path)
    with ps.profile() as profile, torch.no_grad():
        if isinstance(inputs, tuple):
            function(*inputs)
        else:
            ps.map(function, *map(list, zip(*map(_as_tuple, inputs), strict=True)))
    return profile


def _load(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise ArgumentError(
            report(
                "there is no such Python file.",
                facts=[("given", str(path))],
                todo="Name a file that ends in .py.",
            )
        )
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def _find(module: ModuleType, name: str, path: str) -> Any:
    try:
        return attrgetter(name)(module)
    except AttributeError:
        known = [key for key, value in vars(module).items() if isinstance(value, ps.Function)]
        raise ArgumentError(
            report(
                f"the file has no {name}.",
                where=path,
                facts=[("given", name), ("functions in it", ", ".join(known) or "none")],
                todo="Name a function of the file, or a method of an object of the file.",
            )
        ) from None


def _inputs(module: ModuleType, name: str, path: str) -> Any:
    """The inputs of a function: a tuple for one instance, a list for many."""
    found = getattr(module, EXAMPLES, None)
    if callable(found):
        found = found()
    if isinstance(found, dict):
        found = found.get(name)
    if isinstance(found, tuple) or (isinstance(found, list) and found):
        return found
    raise ArgumentError(
        report(
            f"the file does not say what to run {name} on.",
            where=path,
            facts=[
                ("looked for", EXAMPLES),
                ("found", "nothing" if found is None else type(found).__name__),
            ],
            todo=(
                f"Write into the file  {EXAMPLES} = (x, y)  for one call,  {EXAMPLES} = [x1, x2]  "
                f"for many instances, or a dictionary of these by the name of the function."
            ),
        )
    )


def _as_tuple(example: Any) -> tuple[Any, ...]:
    return example if isinstance(example, tuple) else (example,)
