"""Numbers as people write them."""

from __future__ import annotations

from collections.abc import Sequence


def plural(noun: str) -> str:
    """Several of it: "launches"."""
    return f"{noun}es" if noun.endswith(("ch", "s")) else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """A number with its noun: "1 launch", "2,000 launches"."""
    return f"{count:,} {noun if count == 1 else plural(noun)}"


def seconds_in_words(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{max(seconds, 0.0) * 1e6:.0f} us"


def bytes_in_words(count: float) -> str:
    """A number of bytes in the unit that suits it."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"


def listed(names: Sequence[str]) -> str:
    """Names as a sentence lists them: "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
