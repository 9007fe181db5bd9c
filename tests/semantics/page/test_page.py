"""Every numbered sentence of docs/semantics.md has a test here, and every test a sentence.

docs/architecture.md has a line for each folder of the package.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "semantics.md"


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


def test_the_architecture_page_has_a_line_for_every_folder() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    named = re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE)
    folders = [path.parent.name for path in (ROOT / "src" / "penstock").glob("*/__init__.py")]
    assert sorted(named) == sorted(folders)
