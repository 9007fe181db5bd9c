"""Random programs give one answer, whichever way they run; and the generator leaves nothing out."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import Phase, given, reject, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.testing.expressions import RULES, Constant, operations
from penstock.testing.plain import UnsuitableError
from penstock.testing.programs import as_function, as_python_function, run_plain
from penstock.testing.statements import (
    LOOPS,
    ArrayLoop,
    Call,
    Cond,
    Fold,
    Let,
    MapEach,
    ReadElement,
    Scan,
    Switch,
    While,
    blocks_of,
    walk,
)
from penstock.testing.strategies import instances, programs
from tests.semantics.agreement import assert_agree
from tests.semantics.table import Case
from tests.semantics.ways import WAYS

STATEMENTS = (Let, Cond, Switch, While, Scan, Fold, MapEach, ArrayLoop, ReadElement, Call)

FEATURES = (
    "a loop in a loop",
    "a loop in a recursive function",
    "a call in a loop",
    "self-recursion",
    "mutual recursion",
    "a float predicate of a loop",
    "a float predicate of a branch",
    "several carried values",
    "a branch with operands",
    "a branch that reads outer values",
    "a value that is not used",
    "an input that is not used",
    "a constant result",
)


@st.composite
def programs_with_instances(draw):
    program = draw(programs())
    return program, draw(st.integers(1, 5).flatmap(partial(instances, program)))


def case_of(program, rows):
    traced = ps.function(as_function(program))
    python = as_python_function(program)
    return Case(lambda *instance: run_plain(program, instance), traced, rows, python=python)


def plain_outputs(case):
    try:
        return WAYS["plain"](case)
    except UnsuitableError:
        reject()


#: Plain Python has no type for what it makes of an empty sequence, so it cannot run all programs.
COMPARED = [way for way in WAYS if way not in ("plain", "converted_eager")]


@pytest.mark.parametrize("way", COMPARED)
@settings(report_multiple_bugs=False)
@given(drawn=programs_with_instances())
def test_random_programs_agree_with_plain_python(way, drawn):
    case = case_of(*drawn)
    with torch.no_grad():
        expected, actual = plain_outputs(case), WAYS[way](case)
    assert len(actual) == len(expected)
    for number, (left, right) in enumerate(zip(actual, expected, strict=True)):
        assert_agree(left, right, f"instance {number}")


def drawn_programs(count):
    found = []

    @settings(max_examples=count, derandomize=True, database=None, phases=[Phase.generate])
    @given(program=programs())
    def collect(program):
        found.append(program)

    collect()
    return found


def blocks_within(program):
    for function in (*program.functions, program.entry):
        yield function.body
        for statement in walk(function.body):
            yield from blocks_of(statement)


def expressions_of(statement):
    """The expressions that a statement itself holds, without those of nested blocks."""
    for name in statement.__dataclass_fields__:
        held = getattr(statement, name)
        if name == "each":
            yield from held.sequences
        elif name not in ("targets", "parameters", "state", "branches", "body"):
            held = held if isinstance(held, tuple) else (held,)
            yield from (value for value in held if hasattr(value, "kind"))


def expressions_within(program):
    for block in blocks_within(program):
        yield from block.results
        for statement in block.statements:
            yield from expressions_of(statement)


def leaves(expression):
    arguments = getattr(expression, "arguments", None)
    if arguments is None:
        return {expression}
    return {leaf for argument in arguments for leaf in leaves(argument)}


def variables_read(block):
    statements = list(walk(block))
    blocks = [block, *(inner for statement in statements for inner in blocks_of(statement))]
    held = [expression for inner in blocks for expression in inner.results]
    held += [expression for statement in statements for expression in expressions_of(statement)]
    return {leaf for expression in held for leaf in leaves(expression)}


def calls_of(function):
    return {statement.function for statement in walk(function.body) if isinstance(statement, Call)}


def features_of(program):
    """Which of FEATURES a program has."""
    statements = [
        statement
        for function in (*program.functions, program.entry)
        for statement in walk(function.body)
    ]
    yield from features_of_loops(statements)
    yield from features_of_branches(statements)
    yield from features_of_functions(program)
    read = variables_read(program.entry.body)
    if any(target not in read for s in walk(program.entry.body) for target in s.targets):
        yield "a value that is not used"
    if not read.issuperset(program.entry.parameters):
        yield "an input that is not used"
    if any(isinstance(result, Constant) for result in program.entry.body.results):
        yield "a constant result"


def features_of_loops(statements):
    for loop in statements:
        if not isinstance(loop, LOOPS):
            continue
        inner = list(walk(loop.body))
        if any(isinstance(statement, LOOPS) for statement in inner):
            yield "a loop in a loop"
        if any(isinstance(statement, Call) for statement in inner):
            yield "a call in a loop"
        if len(getattr(loop, "state", ())) > 1:
            yield "several carried values"
        if isinstance(loop, While) and is_float_predicate(loop.predicate):
            yield "a float predicate of a loop"


def features_of_branches(statements):
    for branch in statements:
        if not isinstance(branch, Cond | Switch):
            continue
        if isinstance(branch, Cond) and is_float_predicate(branch.predicate):
            yield "a float predicate of a branch"
        if branch.parameters:
            yield "a branch with operands"
        for block in branch.branches:
            bound = {target for statement in walk(block) for target in statement.targets}
            read = {leaf for leaf in variables_read(block) if not isinstance(leaf, Constant)}
            if read - bound - set(branch.parameters):
                yield "a branch that reads outer values"


def features_of_functions(program):
    calls = {function.name: calls_of(function) for function in program.functions}
    for function in program.functions:
        callers = {other for other in calls[function.name] if function.name in calls[other]}
        if function.name in callers:
            yield "self-recursion"
        if callers - {function.name}:
            yield "mutual recursion"
        if callers and any(isinstance(statement, LOOPS) for statement in walk(function.body)):
            yield "a loop in a recursive function"


def is_float_predicate(predicate):
    return any(RULES[operation.rule].margin for operation in operations(predicate))


def test_the_generator_reaches_every_construct():
    reached = Counter()
    for program in drawn_programs(200):
        reached.update(set(features_of(program)))
        reached.update({type(s) for block in blocks_within(program) for s in block.statements})
        expressions = list(expressions_within(program))
        reached.update({o.rule for expression in expressions for o in operations(expression)})
    rare = [name for name in (*FEATURES, *STATEMENTS) if reached[name] < 5]
    assert rare == []
    assert [rule for rule in RULES if not reached[rule]] == []


def test_most_programs_are_short_enough_and_certain():
    suitable = 0

    @settings(max_examples=100, derandomize=True, database=None, phases=[Phase.generate])
    @given(drawn=programs_with_instances())
    def count(drawn):
        nonlocal suitable
        program, rows = drawn
        try:
            suitable += bool([run_plain(program, row) for row in rows])
        except UnsuitableError:
            return

    count()
    assert suitable > 80


def test_values_stay_in_bounds():
    @settings(max_examples=60, derandomize=True, database=None, phases=[Phase.generate])
    @given(drawn=programs_with_instances())
    def check(drawn):
        program, rows = drawn
        for row in rows:
            try:
                results = run_plain(program, row)
            except UnsuitableError:
                return
            for value in results if isinstance(results, tuple) else (results,):
                bound = 2 if value.is_floating_point() else 6
                assert (value.abs() <= bound).all() if value.dtype != torch.bool else True

    check()


def test_the_text_of_a_program_says_the_same_as_its_syntax():
    for program in drawn_programs(20):
        assert str(program).count("@ps.function") == len(program.functions)
        assert as_function(program).__code__.co_argcount == len(program.entry.parameters)
