"""The errors of several processes: which rank, which operation, what is known of the others."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from penstock.distributed.messages import Header
from penstock.errors import AgreementError, ProcessError, report

#: What ranks compare first: whether a call comes next (its number), or the backward pass of one
#: (less than 0).
OPERATION = "the operation that comes next"

_RESTART = (
    "Look at the output of that process; then restart the job from its last checkpoint "
    "(`torchrun --max-restarts`): this group cannot be used any more."
)


def given_up(rank: int, operation: str, reason: str) -> ProcessError:
    """Another rank, or this one before, has failed."""
    facts = [("the reason", reason), (f"rank {rank} was", operation)]
    return ProcessError(
        report("a rank of the process group has failed.", facts=facts, todo=_RESTART)
    )


def failed_wait(
    rank: int, operation: str, peer: int, limit: timedelta | None, error: RuntimeError
) -> ProcessError:
    """A message did not come, or nobody took it; `limit`: within this time."""
    facts = [(f"rank {rank} was", operation)]
    if limit is None:
        what = f"rank {peer} has ended, or cannot be reached."
        facts.append(("the connection", _sentence(error)))
        return ProcessError(report(what, facts=facts, todo=_RESTART))
    what = f"rank {peer} did not answer within {limit.total_seconds():g} s."
    facts.append(("the limit", "the timeout of the process group"))
    todo = (
        f"See whether rank {peer} was started, makes the same calls in the same order, and is not "
        "just slow: `init_process_group(timeout=...)` gives it more time."
    )
    return ProcessError(report(what, facts=facts, todo=todo))


def drifted(rank: int, peer: int, what: str, expected: Header, found: Header) -> AgreementError:
    """A message belongs to another place of a schedule, or to another schedule."""
    facts = [
        (f"rank {rank} expects", f"operation {expected.number} of schedule {_name(expected)}"),
        (f"rank {peer} sent", f"operation {found.number} of schedule {_name(found)}"),
    ]
    return AgreementError(
        report(
            f"ranks {rank} and {peer} have drifted apart: {what} is not what was planned.",
            facts=facts,
            todo="Call the same functions with the same arguments in the same order on every rank.",
        )
    )


def disagreement(name: str, values: Mapping[int, int], advice: str) -> AgreementError:
    """Ranks are about to do different things."""
    say = _operation if name == OPERATION else _hexadecimal
    facts = [(f"rank {rank}", say(value)) for rank, value in values.items()]
    return AgreementError(report(f"the ranks differ in {name}.", facts=facts, todo=advice))


def _name(header: Header) -> str:
    return header.digest.hex()


def _sentence(error: RuntimeError) -> str:
    """What torch says, without the place in its source and without advice."""
    text = str(error).splitlines()[0]
    return text.partition("] ")[2].partition(". ")[0] or text


def _operation(number: int) -> str:
    return f"call {number}" if number > 0 else f"the backward pass of call {-number}"


def _hexadecimal(number: int) -> str:
    return f"{number & (1 << 64) - 1:016x}"
