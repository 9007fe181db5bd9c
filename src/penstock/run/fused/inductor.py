"""The one place that knows Inductor, torch's compiler for straight code.

A function of tensors is traced with symbolic sizes and compiled once for all of them. Inductor
keeps what it has compiled on disk. Private API of torch is used here and nowhere else.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from penstock.run.batched.functorch_adapter import TRACING
from penstock.run.fused.bounds import check_indices
from penstock.run.fused.numerics import DECOMPOSITIONS

#: Takes a list of tensors, which it empties, and gives the results.
Compiled = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


class CannotCompile(Exception):
    """Inductor has failed, for reasons of its own or for want of a compiler."""


def has_compiler(device: torch.device) -> bool:
    """Whether there is a compiler for code on such a device."""
    if device.type == "cpu":
        return any(shutil.which(name) for name in ("g++", "clang++", "c++"))
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        return bool(has_triton())
    return False


def cache_folder() -> Path:
    """Where Inductor keeps what it has compiled: under the folder that `PENSTOCK_CACHE` names, if
    nobody has told Inductor otherwise.
    """
    chosen = os.environ.get("PENSTOCK_CACHE")
    if chosen:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(chosen, "inductor"))
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir())


def compile_function(
    function: Callable[..., Sequence[torch.Tensor]],
    examples: Sequence[torch.Tensor],
    free: Sequence[set[int]],
    slots: Collection[int],
) -> Compiled:
    """Compile a function of tensors; the `free` dimensions of each may change, and those at the
    places `slots` are indices that are never out of range.

    Free dimensions that have one size in the examples always have one size.
    """
    cache_folder()
    try:
        with TRACING, torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own affair
            return _compile(function, examples, free, slots)
    except Exception as error:  # a compiler may fail in any way
        raise CannotCompile(f"{type(error).__name__}: {error}") from error


def _compile(
    function: Callable[..., Sequence[torch.Tensor]],
    examples: Sequence[torch.Tensor],
    free: Sequence[set[int]],
    slots: Collection[int],
) -> Compiled:
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table

    mode = FakeTensorMode(shape_env=ShapeEnv())
    fakes = [_fake(mode, example, dims) for example, dims in zip(examples, free, strict=True)]
    table = {**select_decomp_table(), **DECOMPOSITIONS}
    with mode:
        graph = make_fx(function, tracing_mode="fake", decomposition_table=table)(*fakes)
    on_gpu = examples[0].is_cuda
    if not on_gpu:
        check_indices(graph, slots)
    with tracing(TracingContext(mode)), _settings(on_gpu):
        compiled: Any = compile_fx_inner(graph, fakes, cpp_wrapper=on_gpu)
    return Inner(compiled)


class Inner:
    """The code without what Inductor does around every call for its own records, which takes longer
    than a small kernel; the first call, which is for checking, has done with it.
    """

    __slots__ = ("_compiled", "code")

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        #: What is called: Inductor's object at first, then what it has in it.
        self.code: Any = compiled

    def __call__(self, tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        code = self.code
        found: Sequence[torch.Tensor] = code(tensors)
        if code is self._compiled:
            self.code = getattr(code, "current_callable", None) or code
        return found


def generated(compiled: Compiled) -> FunctionType | None:
    """The Python function that Inductor has written for a CPU, which takes itself and a list of
    tensors; None where code was made otherwise, or was never called.
    """
    code = compiled.code if isinstance(compiled, Inner) else None
    function = code.__func__ if isinstance(code, MethodType) else None
    return function if isinstance(function, FunctionType) else None


def cpp_compiler() -> str | None:
    """The compiler that kernels for a CPU are compiled with; None where there is none."""
    cache_folder()
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        return shutil.which(get_cpp_compiler())
    except Exception:  # of many kinds, by version
        return None


def _fake(mode: FakeTensorMode, example: torch.Tensor, free: set[int]) -> torch.Tensor:
    sizes = [
        DimDynamic.DUCK if dimension in free else DimDynamic.STATIC
        for dimension in range(example.dim())
    ]
    context: StatelessSymbolicContext[Any, Any] = StatelessSymbolicContext(dynamic_sizes=sizes)
    return mode.from_tensor(example, symbolic_context=context)


def _settings(on_gpu: bool) -> AbstractContextManager[None]:
    """Sizes and strides are checked by the caller. For a GPU kernels are started from C++, which
    takes a third of the time on the host.
    """
    import torch._inductor.config as config
    from torch._inductor.compile_fx import get_cpp_wrapper_config

    own = {"size_asserts": False, "nan_asserts": False, "cpp.dynamic_threads": True}
    patch: AbstractContextManager[None] = config.patch(
        {**(get_cpp_wrapper_config() if on_gpu else {}), **own}
    )
    return patch
