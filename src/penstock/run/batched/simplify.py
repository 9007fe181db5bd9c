"""All rules that need no more than one step at a time, in the order in which they are tried."""

from __future__ import annotations

from penstock.run.batched.peephole import first_of
from penstock.run.batched.pointwise_rules import (
    broadcast_plainly,
    plain_numbers,
    sink_reshapes,
)
from penstock.run.batched.shape_rules import (
    drop_copies,
    drop_slices,
    drop_units,
    join_before_reshape,
    join_permutes,
    join_reshapes,
    plain_casts,
    split_before_reshape,
)

simplify_shapes = first_of(
    drop_copies,
    plain_casts,
    drop_units,
    plain_numbers,
    join_reshapes,
    join_permutes,
    drop_slices,
    split_before_reshape,
    join_before_reshape,
    broadcast_plainly,
    sink_reshapes,
)
