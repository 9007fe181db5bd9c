"""Says in words which blocks ran narrow, and what kept them from running wider.

A launch is narrow when it has fewer rows than half the instances of its call. Each reason is one
rule of `RULES`: it looks at all launches of one block and returns a sentence, or None where it does
not apply. A block with an operation that runs row by row, or whose rows ran padded, is told of
however wide it ran.
Backward halves run as wide as the launches they turn around, and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.passes.overlap import find_overlaps
from penstock.profiling.records import (
    CallRecord,
    LaunchRecord,
    ReadRecord,
    SplitRecord,
    WaitRecord,
)
from penstock.profiling.repetition import repetition
from penstock.profiling.summary import by_block
from penstock.profiling.words import counted, listed, seconds_in_words

if TYPE_CHECKING:
    from penstock.profiling.profile import Profile


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one block."""

    launches: Sequence[LaunchRecord]
    #: Launches that were preceded, since the block's last one in the same call, by a read.
    after_read: int

    @property
    def narrow(self) -> int:
        """How many launches were narrow."""
        return sum(2 * launch.rows < launch.call.instances for launch in self.launches)

    @property
    def must_be_told(self) -> bool:
        """Whether there is something to say about it."""
        return bool(self.narrow or self.unbatched or self.is_padded)

    @property
    def unbatched(self) -> list[str]:
        """Operations that ran row by row."""
        names = (name for launch in self.launches for name in launch.unbatched)
        return list(dict.fromkeys(names))

    @property
    def is_padded(self) -> bool:
        """Whether rows of different sizes ran together."""
        return any(launch.padding is not None for launch in self.launches)

    @property
    def is_repeated(self) -> bool:
        """Whether some call launched the block more than once."""
        return len({launch.call for launch in self.launches}) < len(self.launches)

    @property
    def chain(self) -> str | None:
        """The loop or recursion that launched the block again and again, in words."""
        first = self.launches[0]
        graph = first.call.graph
        return repetition(graph, first.node) if graph is not None and self.is_repeated else None


def explain(profile: Profile) -> str:
    """What limited batching, one paragraph for each block that it concerns."""
    launches = [launch for launch in profile.launches if not launch.is_backward]
    if not launches and not any(call.notes for call in profile.calls):
        return "Nothing was launched."
    waits = _launches_after_reads(profile.events)
    known = {
        block: Evidence(mine, sum(launch in waits for launch in mine))
        for block, mine in by_block(launches).items()
    }
    told = {block: each for block, each in known.items() if each.must_be_told}
    paragraphs = [_paragraph(block, each) for block, each in told.items()]
    paragraphs += _serial([each for block, each in known.items() if block not in told])
    paragraphs += dict.fromkeys(map(_split, profile.splits))
    split = {each.name for each in profile.splits}
    singles = [call for call in profile.calls if call.name not in split]
    paragraphs += [_single_calls(name, calls) for name, calls in _repeated_singles(singles)]
    paragraphs += dict.fromkeys(_loops(profile.calls))
    paragraphs += dict.fromkeys(note for call in profile.calls for note in call.notes)
    paragraphs += _waits(profile.waits)
    paragraphs += [f"Traced again, {reason}" for reason in dict.fromkeys(profile.retraces)]
    wide = sum(not each.narrow and not each.unbatched for each in known.values())
    if wide:
        paragraphs.append(f"{counted(wide, 'block')} ran wide: no launch below half the instances.")
    return "\n\n".join(paragraphs)


def _launches_after_reads(events: Sequence[LaunchRecord | ReadRecord]) -> set[LaunchRecord]:
    """Launches with a read between them and the launch of the same block before, in one call."""
    found: set[LaunchRecord] = set()
    number_of_reads = 0
    last: dict[tuple[CallRecord, str], int] = {}
    for event in events:
        if isinstance(event, ReadRecord):
            number_of_reads += 1
            continue
        place = event.call, event.block
        if last.get(place, number_of_reads) < number_of_reads:
            found.add(event)
        last[place] = number_of_reads
    return found


def _paragraph(block: str, evidence: Evidence) -> str:
    launches = evidence.launches
    mean = sum(launch.rows for launch in launches) / len(launches)
    instances = max(launch.call.instances for launch in launches)
    source = launches[0].node.source
    where = f" ({source})" if source else ""
    width = f"{mean:,.1f} rows on average" if len(launches) > 1 else counted(int(mean), "row")
    head = f"{block}{where}: {counted(len(launches), 'launch')} of {width}"
    if evidence.narrow:
        share = f"{evidence.narrow:,} of them" if len(launches) > 1 else "which is"
        few = f"{share} below half of the {counted(instances, 'instance')}"
        head = f"{head}, {few}"
    head = f"{head}."
    reasons = [sentence for rule in RULES if (sentence := rule(evidence))]
    return "\n".join([head, *(f"  {reason}" for reason in reasons or [_otherwise(evidence)])])


def _row_by_row(evidence: Evidence) -> str | None:
    if not evidence.unbatched:
        return None
    return f"Row by row: no batched form of {listed(evidence.unbatched)} is known."


def _different_shapes(evidence: Evidence) -> str | None:
    alone = [launch for launch in evidence.launches if launch.padding is None]
    sizes = {tuple(shape[1:] for shape in launch.shapes) for launch in alone}
    if evidence.launches[0].kind != "mixing" or len(sizes) <= 1 or evidence.is_padded:
        return None
    obstacles = [launch.obstacle for launch in alone if launch.obstacle]
    why = f" It cannot be padded: {obstacles[0]}." if obstacles else ""
    return (
        f"Different shapes: it works across a dimension whose size differs between instances "
        f"({len(sizes):,} sizes); only rows of one size run together.{why}"
    )


def _different_forms(evidence: Evidence) -> str | None:
    """Of recorded steps: each kind of operands has a block of its own, under one name."""
    first = evidence.launches[0]
    forms = {launch.node for launch in evidence.launches if launch.call is first.call}
    if first.call.graph is not None or len(forms) <= 1:
        return None
    sizes = {tuple(shape[1:] for shape in launch.shapes) for launch in evidence.launches}
    if len(sizes) > 1:
        return (
            f"Different shapes: its operands had {len(sizes):,} kinds of shapes, and only those of "
            "one kind run together in eager code."
        )
    if first.node.source is not None:
        return None  # one torch function, called at several places with other numbers
    return (
        f"Different arguments: it was called with {len(forms):,} structures of arguments, such as "
        "lists of different lengths, and only calls of one structure run together. Pass it the "
        "tensors that it needs."
    )


def _padded(evidence: Evidence) -> str | None:
    shares = [launch.padding for launch in evidence.launches if launch.padding is not None]
    if not shares:
        return None
    return (
        f"Padded: rows of different sizes ran together in {counted(len(shares), 'launch')}; "
        f"{sum(shares) / len(shares):.0%} of their sequences was padding."
    )


def _dependence_chain(evidence: Evidence) -> str | None:
    if evidence.chain is None:
        return None
    return (
        f"Dependence chain: {evidence.chain} needs the result of one launch for the next, "
        "and not every instance goes on as long."
    )


def _reads_between(evidence: Evidence) -> str | None:
    if not evidence.after_read:
        return None
    return (
        f"Reads in between: {counted(evidence.after_read, 'launch')} waited for a computed value "
        "to be read back, which decides what runs next."
    )


def _otherwise(evidence: Evidence) -> str:
    if evidence.is_repeated:
        return "Its rows became ready one after the other: calls that need each other's results."
    return "Few rows came here: only some instances take this branch."


#: Reasons in the order in which they are told.
RULES: tuple[Callable[[Evidence], str | None], ...] = (
    _row_by_row,
    _different_shapes,
    _different_forms,
    _padded,
    _dependence_chain,
    _reads_between,
)


def _serial(wide: Sequence[Evidence]) -> Iterator[str]:
    """Loops and recursions of blocks that ran wide, but one after the other."""
    chains: dict[str, Evidence] = {}
    for evidence in wide:
        if evidence.chain is not None:
            chains.setdefault(evidence.chain, evidence)
    for chain, evidence in chains.items():
        launches, reads = counted(len(evidence.launches), "launch"), evidence.after_read
        waited = f", and {reads:,} of them waited for a computed value to be read back"
        yield (
            f"{chain[0].upper()}{chain[1:]} ran serially, {launches} one after the other: each "
            f"needs the result of the one before{waited if reads else ''}."
        )


def _split(split: SplitRecord) -> str:
    return (
        f"{split.name}.map: {counted(split.instances, 'instance')} ran in "
        f"{counted(split.groups, 'group')}, one after the other: {split.reason}."
    )


def _loops(calls: Sequence[CallRecord]) -> Iterator[str]:
    """Whether the iterations of loops could run at the same time."""
    graphs = {call.graph: None for call in calls if call.graph is not None}
    for overlap in (overlap for graph in graphs for overlap in find_overlaps(graph)):
        loop, devices = overlap.context, listed(list(map(str, overlap.devices)))
        where = f" ({loop.source})" if loop.source else ""
        most = loop.parallel_iterations
        bound = "any number" if most is None else f"up to {most:,}"
        if overlap.obstacle is None:
            yield f"{loop.name}{where}: iterations overlap on {devices}, {bound} in flight."
        else:
            yield f"{loop.name}{where}: iterations do not overlap: {overlap.obstacle}."


def _waits(waits: Sequence[WaitRecord]) -> Iterator[str]:
    """For what the queues of devices stood still."""
    found: dict[tuple[str, str], list[float]] = {}
    for wait in waits:
        found.setdefault((wait.device, wait.reason), []).append(wait.seconds)
    for (device, reason), seconds in found.items():
        yield (
            f"{device} waited {reason}: {counted(len(seconds), 'time')}, "
            f"{seconds_in_words(sum(seconds))} in all."
        )


def _repeated_singles(calls: Sequence[CallRecord]) -> list[tuple[str, list[CallRecord]]]:
    """Programs that were called several times with one instance."""
    found: dict[str, list[CallRecord]] = {}
    for call in calls:
        if call.instances == 1 and call.graph is not None:
            found.setdefault(call.name, []).append(call)
    return [(name, single) for name, single in found.items() if len(single) > 1]


def _single_calls(name: str, calls: Sequence[CallRecord]) -> str:
    return (
        f"{name}: {len(calls):,} calls with one instance each. "
        f"Nothing is batched across calls; {name}.map runs the instances together."
    )
