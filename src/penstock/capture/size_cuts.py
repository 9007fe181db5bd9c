"""Calls that cut a dimension at a fixed place: what they give is no simple function of its size.

`x[:20]` keeps all of a short sequence and a part of a long one. A program with a dynamic dimension
stands for all sizes alike, so such a dimension must stay static: the trace is given up, and made
once for each size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.calls.slices import index_items, is_fixed
from penstock.capture.location import user_line
from penstock.errors import TracedValueError, report

if TYPE_CHECKING:
    from penstock.capture.templates import Template

#: Where each call takes the dimension that it cuts, and the one it means by default (None: all).
_CUTS: dict[str, tuple[int, int | None]] = {
    "chunk": (2, 0),
    "unsafe_chunk": (2, 0),
    "split": (2, 0),
    "unsafe_split": (2, 0),
    "split_with_sizes": (2, 0),
    "tensor_split": (2, 0),
    "narrow": (1, 0),
    "unfold": (1, 0),
    "squeeze": (1, None),
}


def refuse_fixed_cut(name: str, template: Template) -> None:
    """Raise where a call cuts a dynamic dimension at a fixed place."""
    if not template.is_dynamic or not template.operands:
        return
    fakes = template.operands[0].traced.fakes
    is_dynamic = [a != b for a, b in zip(fakes[0].shape, fakes[1].shape)]
    for traced in template.cuts:
        is_dynamic[traced.dimension] = False
    short = name.rsplit(".", 1)[-1]
    if short == "__getitem__":
        cut = _is_cut_by_index(template.args[1], is_dynamic)
    elif short in _CUTS:
        cut = _is_cut_by_call(template, short, is_dynamic)
    else:
        return
    if cut:
        raise TracedValueError(
            report(
                f"{short} cuts a dimension whose size differs between instances or calls.",
                where=user_line(),
                facts=[("cut", "at a fixed place"), ("size", "dynamic")],
                todo="Cut at a place computed from x.shape, or pass instances of one size.",
            )
        )


def _is_cut_by_index(index: Any, is_dynamic: Sequence[bool]) -> bool:
    items = index_items(index)
    used = sum(item is not None and item is not Ellipsis for item in items)
    dimension = 0
    for item in items:
        if item is None:
            continue
        if item is Ellipsis:
            dimension += len(is_dynamic) - used
            continue
        is_here = dimension < len(is_dynamic) and is_dynamic[dimension]
        if is_here and isinstance(item, slice) and is_fixed(item):
            return True
        dimension += 1
    return False


def _is_cut_by_call(template: Template, short: str, is_dynamic: Sequence[bool]) -> bool:
    if short == "narrow" and len(template.operands) > 1:
        return False  # torch looks at traced places when the program runs
    position, default = _CUTS[short]
    given = dict(template.kwargs).get("dim", default)
    if len(template.args) > position:
        given = template.args[position]
    if given is None:
        return any(is_dynamic)
    chosen = given if isinstance(given, tuple) else (given,)
    return any(
        isinstance(d, int) and -len(is_dynamic) <= d < len(is_dynamic) and is_dynamic[d]
        for d in chosen
    )
