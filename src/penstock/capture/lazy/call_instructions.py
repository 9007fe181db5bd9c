"""What calls in bytecode do to an analysis: which paths are called, and what comes back.

The result of a call remembers what was called: only what functions of torch made may be changed
afterwards, and only contexts that are known may be entered.
"""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING

from penstock.capture.lazy.called_names import (
    PASSING_BUILTINS,
    is_harmless_method,
    is_method_of_containers,
)
from penstock.capture.lazy.seen import COMPUTED, CONTEXT, MADE, NOTHING, SUPER, Path, Seen, outside

if TYPE_CHECKING:
    from penstock.capture.lazy.bytecode import Run


def call(run: Run, ins: dis.Instruction) -> bool:
    """`f(a, b, name=c)`."""
    if ins.opname == "CALL_KW":
        run.pop()
    arguments = [run.pop() for _ in range(ins.arg or 0)][::-1]
    make_call(run, [run.pop(), run.pop()], arguments)
    return True


def call_unpacked(run: Run, ins: dis.Instruction) -> bool:
    """`f(*args, **kwargs)`."""
    arguments = [run.pop() for _ in range(1 + ((ins.arg or 0) & 1))]
    make_call(run, [run.pop(), run.pop()], arguments)
    return True


def make_call(run: Run, callables: list[Seen], arguments: list[Seen]) -> None:
    """Note what is called, and push what it returns."""
    if CONTEXT in callables:
        run.push(COMPUTED)
        return
    given = [item for item in callables if item is not NOTHING]
    nested = next((item for item in given if item.kind == "function"), None)
    callee = given[0] if given else NOTHING
    if nested is not None:
        # of a comprehension, what it goes over lies in the place of self
        _call_nested(run, nested, [item for item in given if item is not nested] + arguments)
    elif callee.kind == "method":
        _call_method(run, callee, arguments)
    elif callee.is_outside:
        paths = callee.step(("any", "")) if callee.kind == "among" else callee.paths
        _call_outside(run, paths, arguments)
    else:
        what = "its argument" if callee.kind == "argument" else "a value that it computed"
        raise run.refused(f"calls {what}")


def _call_nested(run: Run, callee: Seen, arguments: list[Seen]) -> None:
    from penstock.capture.lazy.bytecode import run_nested

    assert callee.code is not None
    around = {**run.around, **run.frame.names}
    run_nested(callee.code, arguments, around, run.findings)
    run.push(MADE if callee.code.co_name.endswith("comp>") else COMPUTED)


def _call_method(run: Run, callee: Seen, arguments: list[Seen]) -> None:
    base, name = callee.base, callee.name
    assert base is not None
    if base.kind == "among":
        steps = (("any", ""), ("attribute", name))
        _call_outside(run, frozenset((*path, *steps) for path in base.paths), arguments)
        return
    is_own = base.kind in ("computed", "made")
    is_fine = base.kind == "made" and is_method_of_containers(name)
    if not is_fine and not is_harmless_method(name, is_own):
        raise run.refused(f"calls the method {name} of a value")
    if name.endswith("_"):
        run.note_change(base)
    run.note_use(base)
    for argument in arguments:
        run.note_use(argument)
    run.push(base if base.kind == "argument" else Seen("computed", base.paths))


def _call_outside(run: Run, paths: frozenset[Path], arguments: list[Seen]) -> None:
    name = _global_name(paths)
    if name == "super":
        run.push(outside(SUPER))
        return
    if name == "getattr":
        _get_attribute(run, arguments)
        return
    run.findings.call(paths, run.line)
    passed = [item for item in arguments if item.is_outside]
    if name in PASSING_BUILTINS and passed:
        run.push(Seen("among", frozenset().union(*(item.paths for item in passed))))
        return
    for argument in arguments:
        run.note_use(argument)
    run.push(Seen("computed", paths))


def _get_attribute(run: Run, arguments: list[Seen]) -> None:
    """`getattr(value, "name")`; a name that is computed is not understood."""
    is_known = len(arguments) == 2 and isinstance(arguments[1].constant, str)
    if not is_known or arguments[0].kind != "outside":
        raise run.refused("looks up an attribute by a name that is computed")
    run.push(Seen("outside", arguments[0].step(("attribute", arguments[1].constant))))


def _global_name(paths: frozenset[Path]) -> str:
    """The name of a global that is called directly."""
    if len(paths) != 1:
        return ""
    (path,) = paths
    return str(path[0][1]) if len(path) == 1 and path[0][0] == "global" else ""


def make_function(run: Run, ins: dis.Instruction) -> bool:
    """`lambda`, `def` and comprehensions."""
    code = run.pop().constant
    run.use((ins.arg or 0).bit_count())
    run.push(Seen("function", code=code))
    return True


def set_function_attribute(run: Run, ins: dis.Instruction) -> bool:
    """Defaults and closures of a function made just before."""
    function = run.pop()
    run.use()
    run.push(function)
    return True


def call_intrinsic(run: Run, ins: dis.Instruction) -> bool:
    """Python's own helpers: +x, (*x,), and the end of a generator."""
    if ins.arg not in (3, 5, 6):
        raise run.refused("has an instruction that is not understood (CALL_INTRINSIC_1)")
    run.compute(1)
    return True


def format_value(run: Run, ins: dis.Instruction) -> bool:
    """A value in an f-string, with or without a format."""
    run.compute(2 if (ins.arg or 0) & 4 else 1)
    return True


def enter(run: Run, ins: dis.Instruction) -> bool:
    """`with`."""
    manager = run.pop()
    if manager.kind != "computed" or not manager.paths:
        raise run.refused("enters a context that is not understood")
    run.findings.contexts.update(manager.paths)
    run.push(CONTEXT, COMPUTED)
    return True


CALL_RULES = {
    "CALL": call,
    "CALL_KW": call,
    "CALL_FUNCTION_EX": call_unpacked,
    "MAKE_FUNCTION": make_function,
    "SET_FUNCTION_ATTRIBUTE": set_function_attribute,
    "CALL_INTRINSIC_1": call_intrinsic,
    "FORMAT_VALUE": format_value,
    "BEFORE_WITH": enter,
}
