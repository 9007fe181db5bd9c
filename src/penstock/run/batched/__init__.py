"""Blocks for many rows: a function of one instance made into one of N rows, once for all N.

The path: trace one instance, replace what vmap cannot do (`decompose`), trace vmap at several sizes
(`functorch_adapter`), lift to one form for all sizes (`lift`), simplify (`peephole`), print as
Python (`emit`), and compare with row-by-row execution (`check`). A function without a batched form
runs row by row, with a warning. No gradients here.
"""

from penstock.run.batched.block import BatchedBlock, build_batched
from penstock.run.batched.inputs import BlockInput

__all__ = ["BatchedBlock", "BlockInput", "build_batched"]
