"""`penstock bench` lists and runs scripts, and hands them their options."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import __main__ as runner


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The scripts that would have been run."""
    found: dict[str, list[str]] = {}

    def run_all(selection: dict[str, list[str]]) -> list[str]:
        found.update(selection)
        return [name for name in selection if name == "plan" and "--fail" in selection[name]]

    monkeypatch.setattr(runner, "run_all", run_all)
    return found


def test_without_names_the_quick_selection_is_run(ran: dict[str, list[str]]) -> None:
    assert runner.main([]) == 0
    assert ran == {name: options.split() for name, options in runner.QUICK.items()}


def test_options_of_scripts_come_after_those_of_the_selection(ran: dict[str, list[str]]) -> None:
    runner.main(["plan", "growth", "--full", "--rounds", "2", "--trees", "3", "4"])
    assert ran["plan"] == ["--rounds", "15", "--large", "--rounds", "2", "--trees", "3", "4"]
    assert list(ran) == ["plan", "growth"]


def test_nothing_is_recorded_unless_asked_for(ran: dict[str, list[str]]) -> None:
    runner.main(["plan"])
    assert "--record" not in ran["plan"]
    runner.main(["plan", "--record"])
    assert ran["plan"][-2:] == ["--record", str(runner.RESULTS)]


def test_a_script_that_fails_shows_in_the_status(
    ran: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner.main(["plan", "growth", "--fail"]) == 1
    assert capsys.readouterr().err == "failed: plan\n"


def test_an_unknown_name_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        runner.main(["tree_trainig"])
    assert stop.value.code == 2
    assert "Did you mean tree_training?" in capsys.readouterr().err


def test_the_list_has_the_claim_of_every_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(runner.QUICK)
    assert all(len(line.split()) > 5 for line in lines)


def test_help_is_of_the_runner_or_of_a_script(
    ran: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner.main(["--help"]) == 0
    assert "examples:" in capsys.readouterr().out
    runner.main(["plan", "--help"])
    assert ran["plan"][-1] == "--help"


def test_scripts_run_in_processes_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(runner.__file__).parents[1]))
    selection = {"peers.install": ["--help"], "no_such_script": []}
    assert runner.run_all(selection) == ["no_such_script"]
    assert "== [1/2] peers.install --help" in capfd.readouterr().out
