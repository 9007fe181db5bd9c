"""`penstock explain` and `penstock view` run functions of files, and say what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.cli import main

PROGRAM = """
import torch
import penstock as ps

@ps.function
def double(x, n):
    return ps.cond(n > 0, lambda: double(x, n - 1) * 2, lambda: x)

def plain(x):
    return torch.sin(x) * 2

@ps.function
def failing(x):
    raise KeyError("a mistake in the file")

class Model:
    @ps.function
    def forward(self, x):
        return x.cos()

model = Model()
nothing = 3
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    path = tmp_path / "programs_to_see.py"
    path.write_text(PROGRAM)
    return path


def test_explain_prints_the_program_the_table_and_the_reasons(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(PROGRAM + "example_inputs = [(torch.ones(2), n) for n in (0, 1, 3)]\n")
    assert main(["explain", f"{file}:double"]) == 0
    text = capsys.readouterr().out
    assert "def double(%0" in text
    assert "1 call, 3 instances, 3 launches" in text
    assert "the recursion of double" in text


def test_a_tuple_is_one_call(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(PROGRAM + "example_inputs = (torch.ones(2), 3)\n")
    assert main(["explain", f"{file}:double"]) == 0
    assert "1 call, 1 instance, 3 launches" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "launches"), [("model.forward", 1), ("plain", 1)])
def test_methods_and_eager_functions_have_examples_by_name(
    file: Path, capsys: pytest.CaptureFixture[str], name: str, launches: int
) -> None:
    more = f"def example_inputs():\n    return {{{name!r}: [torch.ones(2), torch.zeros(2)]}}\n"
    file.write_text(PROGRAM + more)
    assert main(["explain", f"{file}:{name}"]) == 0
    assert "1 call, 2 instances" in capsys.readouterr().out


def test_view_writes_a_page(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(PROGRAM + "example_inputs = [(torch.ones(2), n) for n in (0, 1, 3)]\n")
    page = file.with_name("page.html")
    assert main(["view", f"{file}:double", "-o", str(page)]) == 0
    assert capsys.readouterr().out == f"written: {page}\n"
    assert "<h1>double.main</h1>" in page.read_text()


@pytest.mark.parametrize(
    ("target", "examples", "told"),
    [
        ("{file}", "", "no function is named"),
        ("{file}.missing:double", "", "there is no such Python file"),
        ("{file}:triple", "", "functions in it  double, failing"),
        ("{file}:double", "", "does not say what to run double on"),
        ("{file}:double", "example_inputs = []", "does not say what to run double on"),
        ("{file}:failing", "example_inputs = (torch.ones(2),)", "a mistake in the file"),
        ("{file}:double", "1 / 0", "ZeroDivisionError"),
    ],
)
def test_what_goes_wrong_is_told_with_status_one(
    file: Path, capsys: pytest.CaptureFixture[str], target: str, examples: str, told: str
) -> None:
    file.write_text(PROGRAM + examples)
    assert main(["explain", target.format(file=file)]) == 1
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("command", ["explain", "view"])
def test_help_teaches_how_a_file_names_its_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert "example_inputs" in text
    assert "exit status" in text
    assert max(map(len, text.splitlines())) <= 100
