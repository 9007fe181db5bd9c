"""RESULTS.md has a section for each script, device and number of threads, in whatever order."""

from __future__ import annotations

from pathlib import Path

from benchmarks.figures import Figures
from benchmarks.results import PREFACE, RESULTS, record

HERE = {"commit": "abc", "date": "today", "device": "cpu", "threads": 1}


def write(path: Path, script: str, figure: str, device: str = "cpu", threads: int = 1) -> None:
    tables = [
        Figures("small", ("candidate", "rate"), (("ours", figure), ("theirs", "2"))),
        Figures("large", ("candidate", "rate"), (("ours", "3"),), "a caption"),
        Figures("other", ("name", "a", "b"), (("x", "4", "5"),)),
    ]
    place = {**HERE, "device": device, "threads": threads}
    record(path, script, "Claim: so it is.", tables, place, "rounds 3")


def test_recording_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "results.md"
    write(path, "one", "1")
    write(path, "two", "1")
    before = path.read_text()
    write(path, "one", "1")
    write(path, "two", "1")
    assert path.read_text() == before


def test_a_run_replaces_the_run_before_it_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "results.md"
    write(path, "one", "111")
    write(path, "two", "222")
    write(path, "one", "333")
    text = path.read_text()
    assert "111" not in text
    assert text.count("333") == text.count("222") == 1
    assert text.index("## one (cpu)") < text.index("## two (cpu)")


def test_the_order_of_runs_does_not_show(tmp_path: Path) -> None:
    for name, order in (("a.md", ("one", "two")), ("b.md", ("two", "one"))):
        for script in order:
            write(tmp_path / name, script, "1")
    assert (tmp_path / "a.md").read_text() == (tmp_path / "b.md").read_text()


def test_each_device_and_number_of_threads_has_a_section_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "results.md"
    write(path, "one", "1")
    write(path, "one", "1", threads=2)
    write(path, "one", "1", device="Some GPU")
    assert [line for line in path.read_text().splitlines() if line.startswith("## ")] == [
        "## one (Some GPU)",
        "## one (cpu)",
        "## one (cpu, 2 threads)",
    ]


def test_a_section_tells_what_was_measured_and_where(tmp_path: Path) -> None:
    path = tmp_path / "results.md"
    write(path, "one", "1")
    assert path.read_text() == (
        PREFACE
        + """
## one (cpu)

Claim: so it is.

|  | candidate | rate |
| --- | --- | ---: |
| small | ours | 1 |
| small | theirs | 2 |
| large | ours | 3 |

a caption

|  | name | a | b |
| --- | --- | ---: | ---: |
| other | x | 4 | 5 |

Run with rounds 3.

Measured at commit abc, date today, device cpu, threads 1.
"""
    )


def test_the_kept_file_is_the_writers() -> None:
    assert RESULTS.read_text().startswith(PREFACE)
