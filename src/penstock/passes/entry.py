"""Gives a program an entry that nobody calls, so that its inputs are the arguments of the call."""

from __future__ import annotations

from dataclasses import replace

from penstock.ir.program import Body, Call, Function, Node, Program, Value


def wrap_entry(program: Program) -> Program:
    """The program itself, or, if its entry is called inside it, with a caller as its new entry."""
    entry = program.entry
    if not _is_called(program, entry.name):
        return program
    values = (*entry.body.inputs, *entry.body.outputs)
    fresh = tuple(Value(-1 - number, value.type) for number, value in enumerate(values))
    inputs, outputs = fresh[: len(entry.body.inputs)], fresh[len(entry.body.inputs) :]
    call = Node(Call(entry.name), inputs, outputs, entry.source)
    main = Function(f"{entry.name}.main", Body(inputs, (call,), outputs), entry.source)
    return replace(program, functions=(main, *program.functions))


def _is_called(program: Program, name: str) -> bool:
    return any(
        node.operation == Call(name)
        for function in program.functions
        for node in function.body.walk()
    )
