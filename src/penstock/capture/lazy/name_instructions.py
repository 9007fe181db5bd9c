"""What bytecode instructions on names, attributes and items do to an analysis (`bytecode.Run`)."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.capture.lazy.called_names import UNSTEADY_ATTRIBUTES
from penstock.capture.lazy.seen import (
    COMPUTED,
    LONGEST_PATH,
    NOTHING,
    SLICE,
    SUPER,
    Seen,
    item_of,
    outside,
    shown,
)

if TYPE_CHECKING:
    from penstock.capture.lazy.bytecode import Run

Rule = Callable[["Run", dis.Instruction], bool]


def _count(ins: dis.Instruction) -> int:
    return ins.arg or 0


def _load_name(run: Run, ins: dis.Instruction) -> bool:
    run.push(_local(run, ins.argval))
    return True


def _local(run: Run, name: str) -> Seen:
    """A variable; a cell itself is only loaded to make a closure."""
    if name in run.code.co_cellvars or name in run.code.co_freevars:
        return COMPUTED
    return run.frame.names.get(name, COMPUTED)


def _load_two(run: Run, ins: dis.Instruction) -> bool:
    run.push(*(_local(run, name) for name in ins.argval))
    return True


def _store_name(run: Run, ins: dis.Instruction) -> bool:
    run.frame.names[ins.argval] = run.pop()
    return True


def _store_two(run: Run, ins: dis.Instruction) -> bool:
    for name in ins.argval:
        run.frame.names[name] = run.pop()
    return True


def _store_and_load(run: Run, ins: dis.Instruction) -> bool:
    run.frame.names[ins.argval[0]] = run.pop()
    run.push(_local(run, ins.argval[1]))
    return True


def _forget_name(run: Run, ins: dis.Instruction) -> bool:
    run.frame.names.pop(ins.argval, None)
    return True


def _load_and_clear(run: Run, ins: dis.Instruction) -> bool:
    run.push(run.frame.names.pop(ins.argval, COMPUTED))
    return True


def _load_constant(run: Run, ins: dis.Instruction) -> bool:
    run.push(Seen("constant", constant=ins.argval))
    return True


def _load_global(run: Run, ins: dis.Instruction) -> bool:
    if _count(ins) & 1:
        run.push(NOTHING)
    run.push(outside((("global", ins.argval),)))
    return True


def _load_cell(run: Run, ins: dis.Instruction) -> bool:
    name = ins.argval
    if name in run.frame.names:
        run.push(run.frame.names[name])
    elif name in run.code.co_freevars and name not in run.around:
        run.push(outside((("cell", name),)))
    else:
        run.push(run.around.get(name, COMPUTED))
    return True


def _store_cell(run: Run, ins: dis.Instruction) -> bool:
    if ins.argval in run.code.co_freevars:
        raise run.refused(f"writes the outer variable {ins.argval}")
    return _store_name(run, ins)


def _load_attribute(run: Run, ins: dis.Instruction) -> bool:
    is_method = ins.opname == "LOAD_METHOD" or (
        sys.version_info >= (3, 12) and bool(_count(ins) & 1)
    )
    base = run.pop()
    value = _attribute(run, base, ins.argval, is_method)
    run.push(*((NOTHING, value) if is_method else (value,)))
    return True


def _attribute(run: Run, base: Seen, name: str, is_method: bool) -> Seen:
    if base.kind == "outside":
        found = Seen("outside", base.step(("attribute", name)))
        if any(len(path) > LONGEST_PATH for path in found.paths):
            raise run.refused("follows a chain of attributes in a loop")
        return found
    if is_method:
        return Seen("method", base=base, name=name)
    if base.kind == "among":
        return Seen("outside", frozenset((*p, ("attribute", name)) for p in base.step(("any", ""))))
    if name in UNSTEADY_ATTRIBUTES:
        raise run.refused(f"reads {name} of a tensor")
    run.note_use(base)
    return base if base.kind == "argument" else COMPUTED


def _load_super(run: Run, ins: dis.Instruction) -> bool:
    for _ in range(3):
        run.pop()
    if _count(ins) & 1:
        run.push(NOTHING)
    run.push(outside((*SUPER, ("attribute", ins.argval))))
    return True


def _write_attribute(run: Run, ins: dis.Instruction) -> bool:
    owner = run.pop()
    shown_owner = shown(min(owner.paths)) if owner.is_outside else "its argument"
    if owner.kind in ("computed", "made"):
        shown_owner = "a value"
    verb = "writes" if ins.opname == "STORE_ATTR" else "deletes"
    raise run.refused(f"{verb} {shown_owner}.{ins.argval}")


def _load_item(run: Run, ins: dis.Instruction) -> bool:
    key, base = run.pop(), run.pop()
    run.note_use(key)
    if not base.is_outside:
        run.note_use(base)
    run.push(item_of(base, key))
    return True


def _load_slice(run: Run, ins: dis.Instruction) -> bool:
    run.use(2)
    run.push(item_of(run.pop(), SLICE))
    return True


def _write_item(extra: int) -> Rule:
    """Change an item of the container that lies under `extra` keys."""

    def rule(run: Run, ins: dis.Instruction) -> bool:
        run.use(extra)
        _refuse_change(run, run.pop(), "changes an item of")
        if ins.opname != "DELETE_SUBSCR":
            run.use()
        return True

    return rule


def _refuse_change(run: Run, value: Seen, what: str) -> None:
    if value.is_outside:
        raise run.refused(f"{what} {shown(min(value.paths))}")
    if value.kind not in ("made", "computed", "constant"):
        raise run.refused(f"{what} its argument")
    run.note_change(value)


def _operator(run: Run, ins: dis.Instruction) -> bool:
    if ins.argrepr.endswith("="):
        following = (other.opname for other in run.instructions[run.position + 1 :])
        is_stored = next((n for n in following if n not in ("SWAP", "CACHE")), "") == "STORE_ATTR"
        _refuse_change(run, run.frame.stack[-2], "writes" if is_stored else "changes in place")
    run.compute(2)
    return True


NAME_RULES: dict[str, Rule] = {
    "LOAD_FAST": _load_name,
    "LOAD_FAST_CHECK": _load_name,
    "LOAD_FAST_AND_CLEAR": _load_and_clear,
    "LOAD_FAST_LOAD_FAST": _load_two,
    "STORE_FAST": _store_name,
    "STORE_FAST_LOAD_FAST": _store_and_load,
    "STORE_FAST_STORE_FAST": _store_two,
    "DELETE_FAST": _forget_name,
    "LOAD_CONST": _load_constant,
    "LOAD_GLOBAL": _load_global,
    "LOAD_DEREF": _load_cell,
    "STORE_DEREF": _store_cell,
    "LOAD_ATTR": _load_attribute,
    "LOAD_METHOD": _load_attribute,
    "LOAD_SUPER_ATTR": _load_super,
    "STORE_ATTR": _write_attribute,
    "DELETE_ATTR": _write_attribute,
    "BINARY_SUBSCR": _load_item,
    "BINARY_SLICE": _load_slice,
    "STORE_SUBSCR": _write_item(1),
    "DELETE_SUBSCR": _write_item(1),
    "STORE_SLICE": _write_item(2),
    "BINARY_OP": _operator,
}
