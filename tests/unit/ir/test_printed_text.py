"""Programs and graphs print as short text; the files of tests/golden are what a reader sees."""

import pytest

from tests.small_programs import SMALL

pytestmark = pytest.mark.usefixtures("interpreted_loops")


@pytest.mark.parametrize("name", SMALL)
def test_a_program_prints_as_short_text(golden, name):
    golden(f"program_{name}", str(SMALL[name]().program))


@pytest.mark.parametrize("name", SMALL)
def test_a_graph_prints_as_short_text(golden, name):
    golden(f"graph_{name}", str(SMALL[name]().graph))


def test_the_text_does_not_depend_on_the_numbers_of_wires():
    build = SMALL["nested_loops"]
    first, second = build().graph, build().graph
    assert str(first) == str(second)


def test_every_move_of_a_loop_has_the_words_of_the_paper():
    text = str(SMALL["nested_loops"]().graph)
    assert text.count("enter ") == text.count("next_iteration ") == text.count("exit ") == 2
    assert "fork " in (text := str(SMALL["map_with_array"]().graph))
    assert "join " in text
    assert "call encode(" in (text := str(SMALL["tree_recursion"]().graph))
    assert text.count("return ") == 2
