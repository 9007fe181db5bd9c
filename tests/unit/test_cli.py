"""The command line explains itself, refuses wrong arguments, and fails with a status."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from penstock import bench
from penstock.cli import build_parser, main


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "demo" in text
    assert "bench" in text


def test_help_of_the_demo_teaches_by_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--help"])
    text = capsys.readouterr().out
    assert "examples:" in text
    assert "exit status" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("arguments", [[], ["dance"], ["demo", "--trees", "0"], ["demo", "-x"]])
def test_wrong_arguments_exit_with_status_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2


def test_the_demo_has_sizes() -> None:
    options = build_parser().parse_args(["demo", "--trees", "7", "--hidden", "8"])
    assert (options.command, options.trees, options.hidden) == ("demo", 7, 8)


def test_the_demo_agrees_and_prints_the_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--trees", "6", "--hidden", "4"]) == 0
    text = capsys.readouterr().out
    assert "The results agree" in text
    assert "times as fast" in text


def test_the_demo_fails_when_the_two_ways_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock import demo

    def wrong(model: demo.TreeLSTM, forest: list[object], *shown: object) -> torch.Tensor:
        return torch.full((len(forest), 4), torch.nan)

    monkeypatch.setattr(demo, "_batched", wrong)
    output = io.StringIO()
    assert demo.run_demo(trees=2, hidden=4, console=Console(file=output)) == 1
    assert "DIFFER" in output.getvalue()


class Started:
    """Stands in for a process: what it was started with."""

    returncode = 3

    def __init__(self, command: list[str], env: dict[str, str], check: bool) -> None:
        Started.command, Started.environment = command, env


def test_benchmarks_are_those_of_the_checkout_around_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inside = tmp_path / "docs" / "pages"
    for folder in (tmp_path / "benchmarks", tmp_path / "src" / "penstock", inside):
        folder.mkdir(parents=True)
    (tmp_path / "benchmarks" / "__main__.py").touch()
    monkeypatch.chdir(inside)
    monkeypatch.setattr(subprocess, "run", Started)
    assert main(["bench", "plan", "--help", "--rounds", "2"]) == Started.returncode
    expected = [sys.executable, "-m", "benchmarks", "plan", "--help", "--rounds", "2"]
    assert Started.command == expected
    paths = Started.environment["PYTHONPATH"].split(":")
    assert paths[:2] == [str(tmp_path / "src"), str(tmp_path)]


def test_without_a_checkout_there_are_no_benchmarks_and_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "_places", lambda: [tmp_path, tmp_path / "site-packages"])
    assert main(["bench", "plan"]) == 2
    assert capsys.readouterr().err == (
        "penstock bench: there are no benchmark scripts here.\n"
        "  looked for   benchmarks/__main__.py beside src/penstock\n"
        f"  in           {tmp_path}\n"
        f"               {tmp_path / 'site-packages'}\n"
        "They are part of the source, not of the installed package: run this inside a checkout of "
        "Penstock.\n"
    )
