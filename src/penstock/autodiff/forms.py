"""Finds the training form of a block for the operands and results of a launch.

Forms are made when first asked for and kept with the block.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TypeAlias

import torch

from penstock.autodiff.device_loops import DeviceLoopForm
from penstock.autodiff.fallback import AutogradForm
from penstock.autodiff.joint import TrainingForm, named_sizes
from penstock.autodiff.row_loops import RowLoopForm
from penstock.autodiff.torch_engine import without_modes
from penstock.errors import PenstockWarning
from penstock.run.batched.emit import BatchFunction
from penstock.run.blocks import RunnableBlock
from penstock.run.native.block import RowLoopBlock
from penstock.run.native.device_block import DeviceLoopBlock, compiled_or_none
from penstock.run.recording import building

#: What a launch that leaves a tape is run with.
Form: TypeAlias = TrainingForm | AutogradForm | RowLoopForm | DeviceLoopForm


def training_form(
    block: RunnableBlock,
    arguments: Sequence[torch.Tensor | int],
    operands: Sequence[int],
    results: Sequence[int],
    *,
    saves_rows: bool = False,
) -> Form:
    """The form of a block that saves what the gradients of these operands need, or only rows of
    operands from which it can be computed again.
    """
    if isinstance(block, RowLoopBlock):
        return _loop_form(block, operands, results)
    sizes = {} if block.has_one_size else named_sizes(block.inputs, arguments)
    batched = block.form(block.dynamic_sizes(arguments))
    is_general = batched.is_general and () in block.forms and min(sizes.values(), default=2) > 1
    fixed = None if is_general or not sizes else sizes
    sizes_key = None if fixed is None else tuple(fixed.items())
    key = (tuple(operands), tuple(results), sizes_key, saves_rows)
    forms: dict[object, TrainingForm | AutogradForm] = block.training_forms
    if key not in forms:
        function = batched.form_for(arguments)
        with building(), without_modes():
            is_row_loop = bool(batched.unbatched)
            forms[key] = _build(block, function, key[:2], fixed, is_row_loop, saves_rows)
    return forms[key]


def _loop_form(block: RowLoopBlock, operands: Sequence[int], results: Sequence[int]) -> Form:
    key = (tuple(operands), tuple(results))
    if key not in block.training_forms:
        if isinstance(block, DeviceLoopBlock):
            block.training_forms[key] = _device_form(block, *key)
        else:
            block.training_forms[key] = RowLoopForm(block, operands, results)
    form: Form = block.training_forms[key]
    return form


def _device_form(
    block: DeviceLoopBlock, operands: Sequence[int], results: Sequence[int]
) -> DeviceLoopForm | AutogradForm:
    form = compiled_or_none(lambda: DeviceLoopForm(block, operands, results), "Triton")
    count = len(block.block.results)
    return form or AutogradForm(block.run_plain, block.inputs, operands, results, count)


def _build(
    block: RunnableBlock,
    function: BatchFunction,
    flows: tuple[Sequence[int], Sequence[int]],
    fixed: dict[str, int] | None,
    is_row_loop: bool,
    saves_rows: bool,
) -> TrainingForm | AutogradForm:
    """The joint form, or where there is none a form that runs the block again."""
    inputs, name = block.inputs, block.name
    if not is_row_loop:
        try:
            return TrainingForm(function, inputs, *flows, name, fixed, saves_rows=saves_rows)
        except Exception as error:  # torch inside a trace may raise anything
            reason = f"{type(error).__name__}: {error}"
            what = f"block {block.name!r} is run again in backward: its derivative has no trace"
            if block.warns:
                warnings.warn(f"{what} ({reason})", PenstockWarning, stacklevel=2)
    return AutogradForm(function, inputs, *flows, len(block.block.results))
