"""What fails for one instance at run time reads the same eagerly, in a graph and in a map."""

from __future__ import annotations

import logging

import pytest
import torch

import penstock as ps
from penstock.errors import DivisionByZeroError, IndexRangeError, PenstockError, SizeError
from penstock.faults import lengths_differ
from tests.unit.errors.messages import blames_a_marked_line, raised_by, text_of


@ps.function
def read(i):
    array = ps.TensorArray(3).write(0, 1.5)
    return array.read(i)  # blamed


@ps.function
def write(i):
    return ps.TensorArray(3, like=torch.tensor(0.0)).write(i, 1.5).stack()  # blamed


@ps.function
def stack(n):
    return ps.TensorArray(n).write(0, 1.5).stack()  # blamed


@ps.function
def choose(i):
    return ps.switch(i, [lambda: i, lambda: -i])  # blamed


@ps.function
def decide(x):
    return ps.cond(x / x, lambda: x, lambda: -x)  # blamed


@ps.function
def decide_on_data(x):
    return ps.cond((x / x).exp(), lambda: x, lambda: -x)  # blamed


@ps.function
def repeat(x):
    return ps.while_loop(lambda y: y / y, lambda y: y - 1, x)  # blamed


#: A function, an argument for which it runs, and one for which it does not.
FAULTS = {
    "read before written": (read, 0, 1),
    "read out of range": (read, 0, 3),
    "read below zero": (read, 0, -1),
    "write out of range": (write, None, 3),
    "stack before written": (stack, 1, 2),
    "negative size": (stack, 1, -1),
    "switch above": (choose, 1, 2),
    "switch below": (choose, 0, -1),
    "nan in cond": (decide, 1.0, 0.0),
    "computed nan in cond": (decide_on_data, 1.0, 0.0),
    "nan in while_loop": (repeat, None, 2.0),
}


@pytest.mark.parametrize("name", FAULTS)
def test_eager_and_graph_raise_the_same_error(name) -> None:
    function, _, argument = FAULTS[name]
    graph = raised_by(lambda: function(argument))
    with ps.set_eager(True):
        eager = raised_by(lambda: function(argument))
    assert isinstance(graph, PenstockError)
    assert (type(graph), str(graph)) == (type(eager), str(eager))
    assert blames_a_marked_line(graph)


@pytest.mark.parametrize("name", [name for name in FAULTS if FAULTS[name][1] is not None])
def test_a_map_names_the_instance(name) -> None:
    function, good, bad = FAULTS[name]
    single = str(raised_by(lambda: function(bad))).splitlines()
    mapped = str(raised_by(lambda: function.map([good, good, bad, bad]))).splitlines()
    assert mapped[2].split() == ["instance", "2"]
    assert [line.split() for line in mapped[:2] + mapped[3:]] == [line.split() for line in single]


def test_a_map_of_one_instance_does_not_name_it() -> None:
    assert str(raised_by(lambda: read.map([1]))) == str(raised_by(lambda: read(1)))


def test_an_eager_map_notes_the_instance() -> None:
    with ps.set_eager(True):
        error = raised_by(lambda: read.map([0, 0, 1]))
    assert error.__notes__ == ["in instance 2 of read.map"]


@ps.function
def element(x, i):
    start = ps.while_loop(lambda k: k < i, lambda k: k + 1, 0)
    return x[start]  # blamed


def test_an_element_out_of_range_names_index_and_size() -> None:
    long, short = torch.arange(5.0), torch.arange(3.0)
    assert element.map([long, short], [4, 2]) == [torch.tensor(4.0), torch.tensor(2.0)]
    error = raised_by(lambda: element.map([long, short], [4, 4]))
    assert isinstance(error, IndexRangeError)
    assert blames_a_marked_line(error)
    assert text_of(error).splitlines() == [
        "IndexRangeError: x[i]: index out of range.",
        "  at test_run_time_faults.py, in element",
        "  instance  1",
        "  index     4",
        "  size      3",
        "Use an index from -size to size - 1; ps.cond can skip what lies outside.",
    ]


def test_instances_of_different_shapes_keep_their_numbers() -> None:
    @ps.function
    def pick(x, i):
        return read(i) + x.sum()

    wide, narrow = torch.ones(2, 3), torch.ones(2, 2)
    error = raised_by(lambda: pick.map([wide, narrow, wide, narrow], [0, 0, 0, 1]))
    assert "  instance  3" in str(error).splitlines()
    error = raised_by(lambda: pick.map([wide, narrow, wide], [0, 1, 0]))
    assert "  instance  1" in str(error).splitlines()


@ps.function
def divide(a, b):
    shifted = a + 1
    quotient = shifted // b  # blamed
    return ps.cond(quotient * 2 > 1, lambda: a, lambda: b)


def test_a_division_by_zero_in_control_blames_its_own_line() -> None:
    error = raised_by(lambda: divide.map([1, 7], [1, 0]))
    assert isinstance(error, DivisionByZeroError)
    assert isinstance(error, RuntimeError)
    assert blames_a_marked_line(error)
    assert text_of(error).splitlines() == [
        "DivisionByZeroError: A whole number is divided by zero.",
        "  at test_run_time_faults.py, in divide",
        "  instance  1",
        "  dividend  8",
        "  divisor   0",
        "Decide on the divisor with ps.cond first, or divide by torch.where(b == 0, 1, b).",
    ]


def test_a_table_read_in_control_blames_its_own_line() -> None:
    @ps.function
    def follow(parents, i):
        return ps.while_loop(
            lambda k: k > 0,
            lambda k: parents[k],  # blamed
            i,
        )

    table = torch.tensor([0, 0, 1, 9])
    assert follow(table, 2) == 0
    error = raised_by(lambda: follow(table, 3))
    assert blames_a_marked_line(error)
    assert "  index  9\n  size   4" in str(error)


def test_sequences_that_do_not_align_are_named_by_their_lengths() -> None:
    error = lengths_differ(3, 4).at("train.py:41, in decode", 2)
    assert isinstance(error, ValueError)
    assert str(error).splitlines() == [
        "Sequences that are combined element by element must have the same length.",
        "  at train.py:41, in decode",
        "  instance  2",
        "  one       3 elements",
        "  another   4 elements",
        "Cut or pad one of them to the length of the other.",
    ]


STEPWISE = {
    "scan": lambda xs: ps.scan(lambda total, pair: (total + pair[0] * pair[1], ()), 0.0, xs)[0],
    "foldl": lambda xs: ps.foldl(lambda total, pair: total + pair[0] * pair[1], xs, 0.0),
    "foldr": lambda xs: ps.foldr(lambda total, pair: total + pair[0] * pair[1], xs, 0.0),
}


@pytest.mark.parametrize("name", STEPWISE)
@pytest.mark.parametrize("from_array", [False, True])
def test_loops_over_sequences_of_different_lengths_are_refused(name, from_array) -> None:
    @ps.function
    def total(xs, ys):
        return STEPWISE[name]((xs, ps.TensorArray.unstack(ys) if from_array else ys))  # blamed

    xs, ys = [torch.ones(3), torch.ones(2)], [torch.ones(3), torch.ones(4)]
    assert total.map(xs, xs, out="stack").tolist() == [3, 2]
    for columns in ((xs, ys), (ys, xs)):
        with pytest.raises(SizeError, match=f"{name}: all sequences must have the same") as caught:
            total.map(*columns)
        assert "for instance 1" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "run", [lambda f, xs: ps.function(f).map(xs), ps.map], ids=["map", "eager"]
)
def test_nothing_is_logged_or_warned_of_where_an_instance_has_too_few_elements(run) -> None:
    logged: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = logged.append  # type: ignore[method-assign]
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(handler)
    try:
        with pytest.raises(IndexError, match="non-zero size"):
            run(lambda x: (x @ x.t()).argmax(1).sum(), [torch.ones(3, 2), torch.ones(0, 2)])
    finally:
        logger.removeHandler(handler)
    assert not logged
