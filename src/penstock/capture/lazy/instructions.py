"""What each bytecode instruction does to an analysis (`bytecode.Run`), for Python 3.11 to 3.13.

A rule returns False where the next instruction is not reached. Instructions without a rule are not
understood, and end the analysis.
"""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING

from penstock.capture.lazy.call_instructions import CALL_RULES
from penstock.capture.lazy.name_instructions import NAME_RULES, Rule
from penstock.capture.lazy.seen import (
    COMPUTED,
    MADE,
    NOTHING,
    SLICE,
    Seen,
    element_of,
)

if TYPE_CHECKING:
    from penstock.capture.lazy.bytecode import Run


def carry_out(run: Run, instruction: dis.Instruction) -> bool:
    """Run one instruction; whether the next one is reached."""
    name = instruction.opname
    rule = RULES.get(name)
    if rule is not None:
        return rule(run, instruction)
    if name.startswith("POP_JUMP"):
        run.use()
        run.jump(instruction.argval)
        return True
    raise run.refused(_REFUSED.get(name, f"has an instruction that is not understood ({name})"))


_REFUSED = {
    "IMPORT_NAME": "imports a module",
    "STORE_GLOBAL": "writes a global",
    "DELETE_GLOBAL": "deletes a global",
    "YIELD_VALUE": "yields",
    "LOAD_BUILD_CLASS": "defines a class",
    "BEFORE_ASYNC_WITH": "waits",
    "GET_AWAITABLE": "waits",
}


def _count(ins: dis.Instruction) -> int:
    return ins.arg or 0


def _nothing(run: Run, ins: dis.Instruction) -> bool:
    return True


def _taking(count: int) -> Rule:
    """Use that many values, and put a result."""

    def rule(run: Run, ins: dis.Instruction) -> bool:
        run.compute(count)
        return True

    return rule


def _putting(value: Seen) -> Rule:
    def rule(run: Run, ins: dis.Instruction) -> bool:
        run.push(value)
        return True

    return rule


def _building(value: Seen, factor: int = 1, extra: int = 0) -> Rule:
    def rule(run: Run, ins: dis.Instruction) -> bool:
        run.use(_count(ins) * factor + extra)
        run.push(value)
        return True

    return rule


def _using(count: int) -> Rule:
    """Use that many values; what lies below them is changed, and was made here."""

    def rule(run: Run, ins: dis.Instruction) -> bool:
        run.use(count)
        return True

    return rule


# Stack and containers


def _pop(run: Run, ins: dis.Instruction) -> bool:
    value = run.pop()
    if value.kind != "function":
        run.note_use(value)
    return True


def _copy(run: Run, ins: dis.Instruction) -> bool:
    run.push(run.frame.stack[-_count(ins)])
    return True


def _swap(run: Run, ins: dis.Instruction) -> bool:
    stack = run.frame.stack
    stack[-1], stack[-_count(ins)] = stack[-_count(ins)], stack[-1]
    return True


def _unpack(run: Run, ins: dis.Instruction) -> bool:
    count = _count(ins)
    if ins.opname == "UNPACK_EX":
        count = (count & 0xFF) + 1 + (count >> 8)
    value = element_of(run.pop())
    run.push(*(value for _ in range(count)))
    return True


def _iterate(run: Run, ins: dis.Instruction) -> bool:
    value = run.pop()
    run.push(Seen("among", value.paths) if value.kind == "outside" else value)
    return True


def _next(run: Run, ins: dis.Instruction) -> bool:
    iterator = run.pop()
    run.jump_out_of_loop(ins.argval)
    run.push(iterator, element_of(iterator))
    return True


# Jumps


def _jump(run: Run, ins: dis.Instruction) -> bool:
    run.jump(ins.argval)
    return False


def _jump_or_pop(run: Run, ins: dis.Instruction) -> bool:
    run.note_use(run.frame.stack[-1])
    run.jump(ins.argval)
    run.pop()
    return True


def _return(run: Run, ins: dis.Instruction) -> bool:
    value = run.pop()
    if value.kind == "function":
        raise run.refused("returns a function")
    run.note_use(value)
    return False


def _end(run: Run, ins: dis.Instruction) -> bool:
    return False


def _raise(run: Run, ins: dis.Instruction) -> bool:
    run.use(_count(ins))
    return False


def _yield(run: Run, ins: dis.Instruction) -> bool:
    if run.code.co_name != "<genexpr>":
        raise run.refused("yields")
    run.compute(1)
    return True


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ["RESUME", "NOP", "CACHE", "EXTENDED_ARG", "PRECALL", "KW_NAMES", "MAKE_CELL"], _nothing
    ),
    "COPY_FREE_VARS": _nothing,
    "LOAD_CLOSURE": _putting(COMPUTED),
    "LOAD_ASSERTION_ERROR": _putting(COMPUTED),
    "PUSH_NULL": _putting(NOTHING),
    "GET_LEN": _putting(COMPUTED),
    "RETURN_GENERATOR": _putting(COMPUTED),
    **NAME_RULES,
    **dict.fromkeys(["COMPARE_OP", "IS_OP", "CONTAINS_OP", "FORMAT_WITH_SPEC"], _taking(2)),
    **dict.fromkeys(
        ["UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_NOT", "UNARY_INVERT", "TO_BOOL"], _taking(1)
    ),
    **dict.fromkeys(["CONVERT_VALUE", "FORMAT_SIMPLE", "LIST_TO_TUPLE"], _taking(1)),
    "BUILD_STRING": _building(COMPUTED),
    "BUILD_TUPLE": _building(MADE),
    "BUILD_LIST": _building(MADE),
    "BUILD_SET": _building(MADE),
    "BUILD_MAP": _building(MADE, 2),
    "BUILD_CONST_KEY_MAP": _building(MADE, 1, 1),
    "BUILD_SLICE": _building(SLICE),
    **dict.fromkeys(["LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE"], _using(1)),
    **dict.fromkeys(["LIST_APPEND", "SET_ADD"], _using(1)),
    "MAP_ADD": _using(2),
    "POP_TOP": _pop,
    "COPY": _copy,
    "SWAP": _swap,
    "UNPACK_SEQUENCE": _unpack,
    "UNPACK_EX": _unpack,
    "GET_ITER": _iterate,
    "FOR_ITER": _next,
    **dict.fromkeys(
        ["JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE"], _jump
    ),
    **dict.fromkeys(["JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"], _jump_or_pop),
    "RETURN_VALUE": _return,
    "RETURN_CONST": _end,
    "RERAISE": _end,
    "RAISE_VARARGS": _raise,
    "YIELD_VALUE": _yield,
    **CALL_RULES,
}
