"""The doctor says what is here, and fails where a program cannot run."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from penstock import doctor
from penstock.cli import main


def test_all_that_is_needed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for name in ("penstock", "Python", "torch", "CPU", "compiler for cpu", "numba", "a program"):
        assert name in text
    assert "WRONG" not in text


def test_a_package_that_is_needed_and_missing_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    output = io.StringIO()
    assert doctor.run_doctor(Console(file=output, width=120)) == 1
    lines = [line.split() for line in output.getvalue().splitlines()]
    assert ["WRONG", "numpy", "missing", "needed"] in lines
    assert ["ok", "numba", "not", "installed"] in [line[:4] for line in lines]
    assert "penstock[native]" in output.getvalue()


def test_what_keeps_launches_from_native_code_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AttributeError("sgemm_")

    def report() -> str:
        output = io.StringIO()
        assert doctor.run_doctor(Console(file=output, width=200)) == 0
        (line,) = (line for line in output.getvalue().splitlines() if "launches in C++" in line)
        return line

    monkeypatch.setattr(doctor.strips, "cpp_compiler", lambda: "c++")
    monkeypatch.setattr(doctor.strips, "_products", lambda: (1, 2))
    assert "possible" in report()
    monkeypatch.setattr(doctor.strips, "_products", refuse)
    assert "torch has another BLAS" in report()
    monkeypatch.setattr(doctor.strips, "cpp_compiler", lambda: None)
    assert "no C++ compiler" in report()


def test_an_old_torch_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "TORCH", (99, 0))
    assert doctor.run_doctor(Console(file=io.StringIO())) == 1


def test_a_program_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> object:
        raise RuntimeError("no luck")

    monkeypatch.setattr(doctor.ps, "while_loop", fail)
    output = io.StringIO()
    assert doctor.run_doctor(Console(file=output, width=120)) == 1
    assert "RuntimeError: no luck" in output.getvalue()
