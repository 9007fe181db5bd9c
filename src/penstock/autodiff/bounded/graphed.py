"""Which launches of bounded runs are CUDA graphs of their own, and which plans may be one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from penstock.autodiff.forms import Form
from penstock.autodiff.joint import TrainingForm
from penstock.autodiff.page import Page
from penstock.run.engine import Columns
from penstock.run.launch_graphs import LaunchGraph, device_of


def input_bytes(columns: Columns) -> int:
    """Bytes of the inputs of a call, of which a plan that is captured has a copy."""
    return sum(
        column.nbytes if isinstance(column, torch.Tensor) else sum(each.nbytes for each in column)
        for column in columns
    )


def may_be_graphed(form: Form, page: Page, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the halves of a launch can be graphs: what it reads of the host it only moves, and it
    does not run on the thread of a device, beside others.
    """
    is_placed = page.block.block.device is not None
    if not isinstance(form, TrainingForm) or is_placed or device_of(tensors) is None:
        return False
    if all(tensor.device == tensors[0].device for tensor in tensors):
        return True
    places = [k for k, spec in enumerate(page.block.inputs) if spec.kind != "size"]
    hosted = {places[k] for k, tensor in enumerate(tensors) if tensor.device.type == "cpu"}
    return hosted <= page.block.moved


def graph_of(form: Form, page: Page, tensors: Sequence[torch.Tensor]) -> LaunchGraph | None:
    """The forward half of a launch as a graph."""
    assert isinstance(form, TrainingForm)
    specs = [spec for spec in page.block.inputs if spec.kind != "size"]
    fixed = [k for k, spec in enumerate(specs) if spec.kind == "uniform"]
    return form.graphs_of(form.forward).find(page.rows, tensors, page.sizes, fixed)
