"""Lowers a structured program to drafts of a graph of primitives: contexts, arms, wires.

Each needed value gets a host wire, a slot wire, or both, as the slices say. Torch calls and host
operations come out one node each, in order; `fuse` makes blocks of them. Dead values are never
lowered.
"""

from __future__ import annotations

from typing import get_args

from penstock.ir import program as ir
from penstock.ir.graph import Home, Input, Read
from penstock.passes.array_types import resolve_array_types
from penstock.passes.flow import Flow
from penstock.passes.lower_control import (
    lower_branch,
    lower_call,
    lower_for_each,
    lower_loop,
    result_homes,
)
from penstock.passes.lower_data import (
    lower_array_access,
    lower_element,
    lower_key,
    lower_new_array,
    lower_size,
    lower_torch,
    lower_uniform,
    lower_whole_array,
)
from penstock.passes.lowering import Lowering, Rule
from penstock.passes.slicing import Slices
from penstock.passes.wires import Wires

RULES: dict[type, Rule] = {
    ir.Constant: lower_uniform,
    ir.Captured: lower_uniform,
    ir.TorchCall: lower_torch,
    ir.RowLoop: lower_torch,
    ir.AsSequence: lower_torch,
    ir.Element: lower_element,
    ir.Size: lower_size,
    ir.ArraySize: lower_size,
    ir.RandomKey: lower_key,
    ir.ArrayNew: lower_new_array,
    ir.ArrayRead: lower_array_access,
    ir.ArrayWrite: lower_array_access,
    ir.ArrayUnstack: lower_whole_array,
    ir.ArrayStack: lower_whole_array,
    ir.Branch: lower_branch,
    ir.Loop: lower_loop,
    ir.ForEach: lower_for_each,
    ir.Call: lower_call,
}

assert set(RULES) == set(get_args(ir.Operation)), "every operation has a rule"


def lower(flow: Flow, slices: Slices) -> Lowering:
    """The drafts of all contexts; `fuse.form_blocks` makes the graph of them."""
    wires = Wires(flow, slices, resolve_array_types(flow))
    lowering = Lowering(flow, slices, wires, RULES)
    for function in flow.program.functions:
        lowering.new_function(function.name, function.source)
        _declare_parameters(lowering, function)
    for function in flow.program.functions:
        _lower_function(lowering, function)
    return lowering


def _declare_parameters(lowering: Lowering, function: ir.Function) -> None:
    if function is lowering.flow.program.entry:
        _declare_inputs(lowering, function.body.inputs)
        return
    draft = lowering.functions[function.name]
    for value in function.body.inputs:
        if value in lowering.slices.live:
            draft.inputs += lowering.wires.define(value, draft.trunk)


def _declare_inputs(lowering: Lowering, values: tuple[ir.Value, ...]) -> None:
    """The entry's arguments: rows find them through their instance."""
    slices, wires = lowering.slices, lowering.wires
    for number, value in enumerate(values):
        host = slot = None
        position = len(wires.inputs)
        if slices.has_host_form(value):
            wires.host[value] = host = wires.new(value.type, Home.HOST, number=position)
        if slices.has_slot_form(value):
            wires.slot[value] = slot = wires.new(value.type, Home.SLOT, number=position)
        wires.inputs.append(Input(value.type, number, None, host, slot))
    trunk = lowering.drafts[0].trunk
    for value in values:
        if value in slices.read:
            trunk.add(Read(), (wires.slot[value],), (wires.define_host(value, trunk),))


def _lower_function(lowering: Lowering, function: ir.Function) -> None:
    """The nodes of a function and the results it returns."""
    draft = lowering.functions[function.name]
    lowering.lower_body(function.body, draft.trunk)
    for position, value in enumerate(function.body.outputs):
        for home in _homes_of_result(lowering, function, position):
            draft.outputs.append(lowering.wires.bring(value, home, draft.trunk))


def _homes_of_result(lowering: Lowering, function: ir.Function, position: int) -> list[Home]:
    slices, flow = lowering.slices, lowering.flow
    if function is flow.program.entry:
        is_uploaded = slices.is_uploaded(function.body.outputs[position])
        return [Home.HOST if is_uploaded else Home.SLOT]
    results = [site.outputs[position] for site in flow.sites[function.name]]
    live = [value for value in results if value in slices.live and flow.root(value) is value]
    return result_homes(lowering, live[0]) if live else []
