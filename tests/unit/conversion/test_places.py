"""Errors, tracebacks and debuggers show the user's own lines; code without source says so."""

from __future__ import annotations

import bdb
import inspect
import linecache
import sys
import traceback
from types import FunctionType

import pytest
import torch

import penstock as ps
from penstock.capture.converted import operators
from penstock.conversion.compile import conversion_of, converted_function
from penstock.errors import TracedValueError
from tests.small_programs import SMALL
from tests.small_python_programs import SMALL_PYTHON

x2 = torch.tensor([1.0, 2.0])


def fails_inside(x):
    total = x
    while total.sum() > 0:
        if total[0] > 1:
            total = total - missing_name  # noqa: F821  the marked line
        total = total - 1
    return total


def line_of(function: FunctionType, text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def test_a_traceback_shows_the_lines_of_the_user() -> None:
    with pytest.raises(NameError) as info:
        ps.function(fails_inside)(x2)
    frames = traceback.extract_tb(info.value.__traceback__)
    own = [frame for frame in frames if frame.filename == __file__]
    assert own[-1].lineno == line_of(fails_inside, "missing_name")
    assert own[-1].line is not None
    assert "missing_name" in own[-1].line
    assert {frame.name for frame in own[1:]} == {"fails_inside"}
    lines, first = inspect.getsourcelines(fails_inside)
    for frame in own[1:]:
        assert first <= frame.lineno < first + len(lines)
    note = f"in fails_inside"  # noqa: F541
    assert any(note in text for text in info.value.__notes__)


class Stops(bdb.Bdb):
    """Remembers where it stopped, and a variable there."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int, bool]] = []

    def user_line(self, frame) -> None:
        if self.break_here(frame):
            self.seen.append((frame.f_code.co_name, frame.f_lineno, "total" in frame.f_locals))
        self.set_continue()


def counts(x):
    total = x
    if x.sum() > 0:
        total = total + 1  # stop here
    return total


def test_a_debugger_stops_at_the_lines_of_the_user() -> None:
    line = line_of(counts, "stop here")
    debugger = Stops()
    before = sys.gettrace()
    debugger.set_break(__file__, line)
    try:
        debugger.runcall(ps.function(counts), x2)
    finally:
        sys.settrace(before)
    assert debugger.seen
    assert set(debugger.seen) == {("counts", line, True)}


def test_inspect_finds_the_source_of_a_converted_function() -> None:
    converted = converted_function(counts, operators)
    assert inspect.getsource(converted) == inspect.getsource(counts)
    assert inspect.signature(converted) == inspect.signature(counts)
    assert converted.__qualname__ == converted.__code__.co_qualname == "counts"
    assert converted.__code__.co_firstlineno == counts.__code__.co_firstlineno


def test_lambdas_on_one_line_are_told_apart() -> None:
    first, second = (lambda x: x if x > 0 else -x), (lambda x: -x if x > 0 else x)
    assert ps.function(first)(-2) == 2
    assert ps.function(second)(-2) == -2


def made_by_exec(text: str, file: str) -> dict:
    namespace = {"torch": torch, "__name__": "made_up"}
    exec(compile(text, file, "exec"), namespace)
    return namespace


TEXT = """
def sign(x):
    if x.sum() > 0:
        return x
    return -x

def double(x):
    return x * 2
"""


def test_code_without_source_runs_as_it_is_and_says_so_where_it_cannot() -> None:
    made = made_by_exec(TEXT, "<nowhere>")
    assert torch.equal(ps.function(made["double"])(x2), x2 * 2)
    with pytest.raises(TracedValueError) as info:
        ps.function(made["sign"])(x2)
    text = str(info.value)
    assert "at <nowhere>:3, in sign" in text
    assert "sign is not converted  its source could not be had" in text
    assert "Use ps.cond instead of `if`" in text


def test_code_whose_lines_are_known_is_converted() -> None:
    file = "<a cell of a notebook>"
    text = "%matplotlib inline\n" + TEXT
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    made = made_by_exec("\n" + TEXT, file)
    assert torch.equal(ps.function(made["sign"])(-x2), x2)


def test_generators_are_not_converted() -> None:
    def parts(x):
        for k in range(3):
            if x.sum() > k:
                yield x

    with pytest.raises(TracedValueError, match="generators and coroutines are not converted"):
        ps.function(lambda x: sum(parts(x)))(x2)


def test_what_opts_out_stays_as_it_is() -> None:
    @ps.do_not_convert
    def sign(x):
        return x if x.sum() > 0 else -x

    with pytest.raises(TracedValueError, match=r"Use ps.cond instead of `if`"):
        ps.function(lambda x: sign(x))(x2)
    assert torch.equal(sign(-x2), x2)

    @ps.function(autograph=False)
    def plain(x):
        return sum(row for row in x)

    assert plain(x2) == 3


def test_library_code_is_not_converted() -> None:
    assert operators.callee(torch.tanh) is torch.tanh
    seen = []

    @ps.function
    def f(x):
        seen.append(operators.callee(linecache.getline) is linecache.getline)
        seen.append(operators.callee(torch.nn.functional.gelu) is torch.nn.functional.gelu)
        seen.append(operators.callee(ps.data.random_trees) is ps.data.random_trees)
        return x

    f(x2)
    assert all(seen)
    assert conversion_of(f.__wrapped__).code is not None


def test_each_trace_is_explained() -> None:
    @ps.function
    def scaled(x, mode):
        return x * 2 if mode == "double" else x

    scaled(x2, "double")
    scaled(x2, "double")
    scaled(x2, "single")
    scaled(x2.double(), "single")
    first, *reasons = scaled.explain_retraces().splitlines()
    assert first == "scaled was traced 3 times."
    assert "the first call, at " in reasons[0]
    assert "mode: 'double' -> 'single', at " in reasons[1]
    assert "the type of x: " in reasons[2]
    assert "test_places.py" in reasons[2]


#: `while_loop` has a bound on its iterations there, which `while` has not.
DIFFERENT = {"data_dependent_loop"}


@pytest.mark.parametrize("name", SMALL)
def test_both_spellings_give_the_same_program_and_graph(name, golden) -> None:
    python, combinators = SMALL_PYTHON[name](), SMALL[name]()
    if name in DIFFERENT:
        golden(f"python_program_{name}", str(python.program))
        return
    assert str(python.program) == str(combinators.program)
    assert str(python.graph) == str(combinators.graph)
