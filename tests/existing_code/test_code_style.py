"""Existing code runs as it is: a table of programs, each mapped in every way."""

from __future__ import annotations

import re
import warnings
from functools import cache

import pytest

import penstock as ps
from tests.existing_code.harness import (
    MAPS,
    WAYS,
    Observed,
    assert_agree,
    observe,
    plainly,
    under_set_eager,
)
from tests.existing_code.programs import CHANGES, STYLES

PROGRAMS = {**STYLES, **CHANGES}


@cache
def expected_of(name: str) -> Observed:
    return observe(PROGRAMS[name], plainly)


def check(name: str, way) -> None:
    program = PROGRAMS[name]
    expected = expected_of(name)
    with warnings.catch_warnings():
        if program.warns:
            warnings.simplefilter("ignore", ps.PenstockWarning)
        assert_agree(observe(program, way), expected, program.tolerance)


ONE_LINERS = [name for name, program in STYLES.items() if program.is_one_line]
LONGER = [name for name in STYLES if name not in ONE_LINERS]


@pytest.mark.usefixtures("unchanged_torch")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LONGER)
def test_existing_code_gives_what_the_plain_loop_gives(name, way):
    check(name, WAYS[way])


@pytest.mark.usefixtures("unchanged_torch")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CHANGES)
def test_changes_in_place_give_what_the_plain_loop_gives(name, way):
    check(name, WAYS[way])


@pytest.mark.usefixtures("unchanged_torch")
@pytest.mark.parametrize("name", ONE_LINERS)
def test_one_line_gives_what_the_plain_loop_gives_in_every_way(name):
    failed = {}
    for way, run in WAYS.items():
        try:
            check(name, run)
        except (Exception, AssertionError) as error:
            failed[way] = error
    if failed:
        raise AssertionError(f"ways that differ: {', '.join(failed)}") from next(
            iter(failed.values())
        )


def test_set_eager_is_the_plain_loop():
    for name in PROGRAMS:
        check(name, under_set_eager)


@pytest.mark.parametrize("way", MAPS)
def test_printing_shows_the_numbers(way, capsys):
    program = STYLES["text: print"]
    observe(program, plainly)
    expected = capsys.readouterr().out
    observe(program, MAPS[way])
    assert numbers_in(capsys.readouterr().out) == numbers_in(expected)


def numbers_in(text: str) -> list[str]:
    return sorted(re.findall(r"-?\d+\.\d+", text))
