"""Random programs as Python text with plain control flow: `if`, `match`, `while`, `for`, lists.

The same programs as in `source`, in the other spelling. Scans, maps and folds from the right over
several sequences stay calls: what plain Python makes of an empty sequence has no type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.testing.expressions import BOOL, Constant, Expression
from penstock.testing.source import SourceWriter, in_brackets, names_of, packed, text_of, value_text
from penstock.testing.statements import (
    TRIPS,
    ArrayLoop,
    Block,
    Cond,
    Fold,
    ReadElement,
    Switch,
    Variables,
    While,
)


class PythonWriter(SourceWriter):
    """The lines of a program without combinators."""

    @contextmanager
    def _inside(self, head: str) -> Iterator[None]:
        self._line(head)
        self._indent += 1
        yield
        self._indent -= 1

    def _block(self, block: Block) -> None:
        self._statements(block)
        self._line(f"return {packed([text_of(result) for result in block.results])}")

    def _assign(self, targets: Variables, values: Sequence[Expression]) -> None:
        if targets:
            self._bind(targets, ", ".join(map(text_of, values)))

    def _arm(self, head: str, targets: Variables, block: Block) -> None:
        with self._inside(head):
            self._statements(block)
            self._assign(targets, block.results)

    def _branches(self, statement: Cond | Switch) -> None:
        self._assign(statement.parameters, statement.operands)
        if isinstance(statement, Cond):
            self._arm(
                f"if {value_text(statement.predicate)}:", statement.targets, statement.branches[0]
            )
            self._arm("else:", statement.targets, statement.branches[1])
            return
        index = in_brackets(statement.index, text_of(statement.index))
        last = len(statement.branches) - 1
        with self._inside(f"match {index} % {last + 1}:"):
            for number, branch in enumerate(statement.branches):
                shown = "_" if number == last else str(number)
                self._arm(f"case {shown}:", statement.targets, branch)

    def _while(self, loop: While) -> None:
        counter = loop.counter.name if loop.counter else self._fresh("left")[0]
        count = in_brackets(loop.count, text_of(loop.count))
        self._line(f"{counter} = {count} % {TRIPS}")
        self._assign(loop.state, loop.initial)
        test = f"{counter} > 0"
        if loop.predicate != Constant(True, BOOL):
            test += f" and {in_brackets(loop.predicate, value_text(loop.predicate))}"
        with self._inside(f"while {test}:"):
            self._statements(loop.body)
            names = [counter, *names_of(loop.state)]
            values = [f"{counter} - 1", *map(text_of, loop.body.results)]
            self._line(f"{', '.join(names)} = {', '.join(values)}")
        self._assign(loop.targets, loop.state)

    def _fold(self, fold: Fold) -> None:
        sequences = [text_of(sequence) for sequence in fold.each.sequences]
        if fold.reverse and len(sequences) > 1:
            super()._fold(fold)
            return
        source = sequences[0] if len(sequences) == 1 else f"zip({', '.join(sequences)})"
        source = f"reversed({source})" if fold.reverse else source
        self._assign(fold.state, fold.initial)
        with self._inside(f"for {', '.join(names_of(fold.each.elements))} in {source}:"):
            self._statements(fold.body)
            self._assign(fold.state, fold.body.results)
        self._assign(fold.targets, fold.state)

    def _array_loop(self, loop: ArrayLoop) -> None:
        size, first, values = self._fresh("size", "first", "values")
        self._line(f"{size} = {in_brackets(loop.count, text_of(loop.count))} % {TRIPS}")
        self._line(f"{first} = {text_of(loop.initial)}")
        self._line(f"{values} = [{first}]")
        with self._inside(f"for {loop.index.name} in range({size}):"):
            self._line(f"{loop.index.name} = torch.as_tensor({loop.index.name})")
            self._line(f"{loop.previous.name} = {values}[{loop.index.name}]")
            self._statements(loop.body)
            self._line(f"{values}.append({text_of(loop.body.results[0])})")
        position = f"{in_brackets(loop.position, text_of(loop.position))} % ({size} + 1)"
        self._bind(loop.targets, f"torch.stack({values}), {values}[{position}], {first}")

    def _read_element(self, read: ReadElement) -> None:
        sequence = read.sequence.name
        index = f"{in_brackets(read.index, text_of(read.index))} % {sequence}.shape[0]"
        with self._inside(f"if len({sequence}) > 0:"):
            self._bind(read.targets, f"{sequence}[{index}]")
        with self._inside("else:"):
            self._bind(read.targets, text_of(read.default))
