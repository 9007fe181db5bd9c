"""The one writer of RESULTS.md: a section for each script, device and number of threads, replaced
when it is run again.

Sections stand in alphabetical order, so the file depends on what was measured last and not on the
order of the runs. Nothing in it is written by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.figures import Figures, as_markdown

RESULTS = Path(__file__).parent / "RESULTS.md"

PREFACE = """\
# Results

Written by the scripts themselves (`--record`); nothing here is typed by hand. Each section is the
last recorded run of one script on one kind of device, by one thread unless it says more. Figures
are medians with quartiles in brackets; ratios were taken within rounds of one run. A commit with
`+` had changes that were not committed.
"""


def record(
    path: Path,
    script: str,
    claim: str,
    tables: Sequence[Figures],
    environment: Mapping[str, str | int],
    sizes: str,
) -> None:
    """Put the section of one run into the file, in place of the run before."""
    sections = _sections(path.read_text(encoding="utf-8")) if path.exists() else {}
    where = ", ".join(f"{key} {value}" for key, value in environment.items())
    parts = [claim, as_markdown(tables), f"Run with {sizes}.", f"Measured at {where}."]
    sections[f"{script} ({_place(environment)})"] = "\n\n".join(parts)
    text = [f"## {heading}\n\n{sections[heading]}\n" for heading in sorted(sections)]
    path.write_text("\n".join([PREFACE, *text]), encoding="utf-8")


def _place(environment: Mapping[str, str | int]) -> str:
    """What tells the sections of one script apart."""
    threads = environment["threads"]
    several = f", {threads} threads" if threads != 1 else ""
    return f"{environment['device']}{several}"


def _sections(text: str) -> dict[str, str]:
    """The bodies of the sections by their headings."""
    found: dict[str, str] = {}
    for part in text.split("\n## ")[1:]:
        heading, _, body = part.partition("\n")
        found[heading] = body.strip("\n")
    return found
