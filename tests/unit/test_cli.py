"""The command line explains itself, refuses wrong arguments, and fails with a status."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from penstock.cli import build_parser, main


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "demo" in capsys.readouterr().out


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

    def wrong(model: demo.TreeLSTM, forest: list[object], console: Console) -> torch.Tensor:
        return torch.full((len(forest), 4), torch.nan)

    monkeypatch.setattr(demo, "_batched", wrong)
    output = io.StringIO()
    assert demo.run_demo(trees=2, hidden=4, console=Console(file=output)) == 1
    assert "DIFFER" in output.getvalue()
