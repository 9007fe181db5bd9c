"""The passes by name, in the order in which a program goes through them."""

from __future__ import annotations

from collections.abc import Collection

from penstock.ir.graph import Graph
from penstock.ir.program import Program
from penstock.passes.entry import wrap_entry
from penstock.passes.flow import Flow, analyse_flow
from penstock.passes.fuse import form_blocks
from penstock.passes.losses import split_losses
from penstock.passes.lower import lower
from penstock.passes.place import is_placed, place_nodes
from penstock.passes.row_loops import close_row_loops
from penstock.passes.share import share_computations
from penstock.passes.slicing import Slices, slice_control
from penstock.passes.windows import open_windows


def program_to_graph(
    program: Program,
    default_dtype: str = "float32",
    *,
    closes_loops: Collection[str] = (),
    opens_windows: bool = False,
) -> Graph:
    """Split losses, share computations, wrap the entry, place, analyse flow, slice control, lower,
    form blocks.

    Loops of row-wise arithmetic on the kinds of devices in `closes_loops`, and whole loops where it
    says so (see `close_row_loops`), are closed before they are lowered; not in a program that is
    placed, since a closed loop runs on one device.
    """
    program = place_nodes(wrap_entry(share_computations(split_losses(program))))
    may_close = bool(closes_loops) and not is_placed(program)
    flow, slices = _analyse(program, default_dtype)
    while may_close:
        closed = close_row_loops(flow, slices, closes_loops)
        may_close = closed is not flow.program  # what steered a loop may steer nothing any more
        flow, slices = _analyse(closed, default_dtype)
    if opens_windows and not is_placed(program):
        flow, slices = _analyse(open_windows(flow.program), default_dtype)
    return form_blocks(lower(flow, slices))


def _analyse(program: Program, default_dtype: str) -> tuple[Flow, Slices]:
    flow = analyse_flow(program)
    return flow, slice_control(flow, default_dtype)
