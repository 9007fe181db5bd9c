"""Runs programs on several devices that nobody has placed, and devices of unlike speed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from penstock.ir.devices import Device
from penstock.ir.program import (
    AsSequence,
    Body,
    Branch,
    ForEach,
    Function,
    Loop,
    Node,
    Program,
    TorchCall,
)
from penstock.passes import pipeline
from penstock.run.flight import Flight

#: Two queues of one process, and one queue of each of two processes.
TWO_QUEUES = (Device(0, "cpu:0"), Device(0, "cpu:1"))
TWO_RANKS = (Device(0, "cpu:0"), Device(1, "cpu:0"))


@contextmanager
def placed_in_turn(devices: Sequence[Device] = TWO_QUEUES) -> Iterator[None]:
    """Programs that are first called inside have their torch calls on devices in turn."""
    place = pipeline.place_nodes

    def place_in_turn(program: Program) -> Program:
        return place(_in_turn(program, devices))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "place_nodes", place_in_turn)
        yield


@contextmanager
def slow_device(number: int, seconds: float = 2e-4) -> Iterator[None]:
    """One device waits before each of its tasks."""
    make = Flight.task

    def task(flight: Flight, order: int, device: int, work: Callable[[], None]) -> Any:
        made = make(flight, order, device, work)
        if device != number:
            return made

        def delayed() -> None:
            time.sleep(seconds)
            made()

        return delayed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flight, "task", task)
        yield


def _in_turn(program: Program, devices: Sequence[Device]) -> Program:
    names = itertools.cycle(devices)
    functions = tuple(
        Function(function.name, _body(function.body, names), function.source)
        for function in program.functions
    )
    return replace(program, functions=functions)


def _body(body: Body, names: Iterator[Device]) -> Body:
    return Body(body.inputs, tuple(_node(node, names) for node in body.nodes), body.outputs)


def _node(node: Node, names: Iterator[Device]) -> Node:
    match node.operation:
        case TorchCall() | AsSequence():
            return replace(node, device=next(names))
        case Branch(bodies=bodies):
            inner = tuple(_body(body, names) for body in bodies)
            return replace(node, operation=replace(node.operation, bodies=inner))
        case Loop(condition=condition, body=body):
            both = {"condition": _body(condition, names), "body": _body(body, names)}
            return replace(node, operation=replace(node.operation, **both))
        case ForEach(body=body):
            return replace(node, operation=replace(node.operation, body=_body(body, names)))
        case _:
            return node
