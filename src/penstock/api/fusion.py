"""The switch for compiled launches."""

from __future__ import annotations

from functools import partial

from penstock.api.setting import Setting
from penstock.run.fused.setting import Fusion, choose_fusion


class set_fusion(Setting):
    """Choose when blocks are compiled, for the whole process.

    A compiled block gathers its operands, computes and writes its results in a few kernels. The
    results are the same up to rounding; the code runs through torch's compiler, which needs a C++
    compiler for CPU and Triton for CUDA, takes seconds for each block, and keeps what it has made
    on disk. Takes effect when called; as a context manager it puts the former setting back at the
    end. The environment variable PENSTOCK_FUSION sets it at the start.

    Arguments:
        mode: "auto" compiles a block once it has run long enough for that to pay, and uses the code
            where it is measured to be faster; "always" compiles at the first launch; "never" does
            not compile.

    Gradients flow as without it.

    >>> with set_fusion("never"):
    ...     pass
    """

    def __init__(self, mode: str) -> None:
        super().__init__(partial(choose_fusion, Fusion.mode))
        choose_fusion(mode)
