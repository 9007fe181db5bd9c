"""The passes by name, in the order in which a program goes through them."""

from __future__ import annotations

from penstock.ir.graph import Graph
from penstock.ir.program import Program
from penstock.passes.entry import wrap_entry
from penstock.passes.flow import analyse_flow
from penstock.passes.fuse import form_blocks
from penstock.passes.lower import lower
from penstock.passes.share import share_computations
from penstock.passes.slicing import slice_control


def program_to_graph(program: Program, default_dtype: str = "float32") -> Graph:
    """Share computations, wrap the entry, analyse flow, slice control, lower, form blocks."""
    flow = analyse_flow(wrap_entry(share_computations(program)))
    slices = slice_control(flow, default_dtype)
    return form_blocks(lower(flow, slices))
