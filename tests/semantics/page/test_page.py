"""Every numbered sentence of docs/semantics.md has a test here, and every test a sentence."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
PAGE = Path(__file__).parents[3] / "docs" / "semantics.md"


def numbers_on_the_page() -> list[int]:
    return [int(number) for number in re.findall(r"\*\*S(\d+)\.\*\*", PAGE.read_text("utf-8"))]


def numbers_of_tests() -> list[int]:
    texts = [path.read_text("utf-8") for path in sorted(HERE.glob("test_*.py"))]
    return [int(number) for text in texts for number in re.findall(r"def test_s(\d+)_", text)]


def test_sentences_are_numbered_in_order() -> None:
    numbers = numbers_on_the_page()
    assert numbers == list(range(1, len(numbers) + 1))


def test_every_sentence_has_one_test_and_every_test_a_sentence() -> None:
    assert Counter(numbers_of_tests()) == Counter(numbers_on_the_page())
