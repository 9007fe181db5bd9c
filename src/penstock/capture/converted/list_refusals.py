"""What a list that grows in traced code refuses, with what to do instead."""

from __future__ import annotations

from typing import Any

from penstock.capture.location import user_place
from penstock.capture.refusals import describe
from penstock.errors import IndexRangeError, StructureError, TracedValueError, report


def unsupported(what: str) -> TracedValueError:
    """Python asks for what only a plain list can do."""
    return TracedValueError(
        report(
            f"A list that grows in traced code cannot be used for {what}.",
            where=user_place(),
            facts=[("asked for", what), ("possible", "append, pop(), [i], len, for, torch.stack")],
            todo="Use torch.stack(list) and tensor operations, or a ps.TensorArray.",
        )
    )


def nothing_known() -> IndexRangeError:
    """An element is asked for, but there never was one."""
    return IndexRangeError(
        report(
            "Nothing was ever appended to this list.",
            where=user_place(),
            facts=[("list", "empty"), ("needed", "the type of an element")],
            todo="Append to it first.",
        )
    )


def other_structure(structure: Any, value: Any) -> StructureError:
    """An element has another structure than those before."""
    known = "unknown" if structure is None else f"{structure.num_leaves} tensors"
    return StructureError(
        report(
            "list.append: all elements of a list that grows in traced code have one structure.",
            where=user_place(),
            facts=[("elements so far", known), ("new element", describe(value))],
            todo="Append elements of one structure, or use one list for each kind.",
        )
    )
