"""Rows without some cotangents that may go with the others, zeros in the place of what is missing.

No cotangent is not a zero one: zero times infinity is not zero, and what no cotangent reaches has
no gradient. Where a cotangent is only ever added to a value that comes from others, there is no
difference; so most rows of a launch go through one backward half.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from penstock.run.batched.steps import Step, StraightLine, read_steps

_ADD = torch.ops.aten.add.Tensor


def may_be_zero(code: StraightLine, missing: Collection[Step], present: Collection[Step]) -> bool:
    """Whether zeros for some inputs of a backward half have the effect of leaving them out, for
    rows in which others are present.
    """
    if any(step in missing for step in code.outputs):
        return False
    from_present = set(present)
    for step in code.steps:
        reads = list(read_steps((step.args, step.kwargs)))
        absent = [read for read in reads if read in missing]
        if absent and not _adds_to(step, absent, from_present):
            return False
        if any(read in from_present for read in reads):
            from_present.add(step)
    return True


def _adds_to(step: Step, absent: list[Step], from_present: set[Step]) -> bool:
    """Whether a step adds one of the missing values to one that is there without it."""
    if step.target is not _ADD or len(absent) != 1:
        return False
    first, second = step.args[:2]
    other = second if first is absent[0] else first
    return isinstance(other, Step) and other in from_present
