"""The passes over lifted code, by name and in order."""

from __future__ import annotations

from penstock.run.batched.peephole import rewrite
from penstock.run.batched.product_rules import (
    fuse_bias,
    join_outer_products,
    share_weights,
    turn_columns,
    turn_products,
    use_linear,
)
from penstock.run.batched.simplify import simplify_shapes
from penstock.run.batched.steps import StraightLine


def optimise(code: StraightLine) -> StraightLine:
    """The code as one would write it by hand."""
    return rewrite(
        code,
        simplify_shapes,
        share_weights,
        turn_columns,
        join_outer_products,
        turn_products,
        fuse_bias,
        simplify_shapes,
        use_linear,
    )
