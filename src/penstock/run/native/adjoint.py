"""The adjoint of scalar statements, printed in reverse after the statements themselves.

Cotangents are variables `d_x`. No cotangent is not a zero cotangent: whether `x` has one is known
while printing (never, always), or it is a flag `h_x` at run time, and what follows from `x` is then
under an `if`. A loop goes backward through what its iterations left on stacks; an iteration is run
again before it is reversed, because its inner loops leave theirs only then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import IntEnum

from penstock.run.native.analysis import defined, names_of
from penstock.run.native.printing import FULL, ROW, Printer
from penstock.run.native.scalars import Assign, Atom, Choose, Repeat, Statement, Variable


class Presence(IntEnum):
    """Whether a variable has a cotangent."""

    NEVER = 0
    MAYBE = 1
    ALWAYS = 2


States = dict[str, Presence]

#: Prints how the values that an iteration started from are found.
Load = Callable[[Printer], None]


def join(first: States, second: States) -> States:
    """What is known where one of two things has happened."""
    never = Presence.NEVER
    pairs = {name: (first.get(name, never), second.get(name, never)) for name in first | second}
    return {name: a if a == b else Presence.MAYBE for name, (a, b) in pairs.items()}


class RecordingPrinter(Printer):
    """Prints statements so that loops with cotangents leave their carried values on stacks.

    Only the outermost loops do: those inside are run again, iteration by iteration, in reverse.
    """

    def __init__(self, active: set[str]) -> None:
        super().__init__(checks=False)
        self.active = active
        self.nesting = 0

    def repeat(self, statement: Repeat) -> None:
        """A loop, and how deep it is."""
        self.nesting += 1
        super().repeat(statement)
        self.nesting -= 1

    def begin_iteration(self, statement: Repeat) -> None:
        """Push what the iteration starts from."""
        if self.nesting == 1 and is_active(statement, self.active):
            for dtype, variables in by_dtype(statement.carried).items():
                self.make_room(dtype, len(variables))
                for place, variable in enumerate(variables):
                    self.store(f"stack_{dtype}", f"top_{dtype} + {place}", variable.name)
                self.add(f"top_{dtype} += {len(variables)}")

    def make_room(self, dtype: str, count: int) -> None:
        """Stop in this row where a stack is full."""
        with self.indented(f"if top_{dtype} + {count} > stack_{dtype}.size:"):
            self.add(f"report[{ROW}] = row")
            self.add(f"return {FULL}")

    def begin_pops(self) -> None:
        """From here on what was pushed is read."""

    def another(self) -> RecordingPrinter:
        """A printer of the same kind without lines."""
        return type(self)(self.active)


def is_active(statement: Repeat, active: set[str]) -> bool:
    """Whether gradients flow through a loop."""
    return any(variable.name in active for variable in statement.carried)


def by_dtype(variables: Sequence[Variable]) -> dict[str, list[Variable]]:
    """Variables by their dtypes, in order."""
    found: dict[str, list[Variable]] = {}
    for variable in variables:
        found.setdefault(variable.dtype, []).append(variable)
    return found


@dataclass(slots=True)
class Adjoint:
    """Prints the reverse of statements; knows which variables have cotangents so far."""

    printer: RecordingPrinter
    active: set[str]
    states: States = field(default_factory=dict)
    #: The values that derivatives and branches read.
    used: set[str] = field(default_factory=set)
    #: The values to compute again, where that is known: nothing else can be relied on.
    needed: set[str] | None = None

    def contribute(self, atom: Atom, expression: str, presence: Presence, flag: str) -> None:
        """Add to the cotangent of a variable, if what it follows from has one."""
        if not isinstance(atom, Variable) or atom.name not in self.active:
            return
        known = self.states.get(atom.name, Presence.NEVER)
        value = self.printer.cast(expression, atom.dtype)
        more = value if known is Presence.NEVER else f"d_{atom.name} + {value}"
        with self._if_present(presence, flag):
            self.printer.add(f"d_{atom.name} = {more}")
            if known is not Presence.ALWAYS:
                self.printer.add(f"h_{atom.name} = {self.printer.YES}")
        is_sure = Presence.ALWAYS in (known, presence)
        self.states[atom.name] = Presence.ALWAYS if is_sure else Presence.MAYBE

    def _if_present(self, presence: Presence, flag: str) -> AbstractContextManager[None]:
        is_sure = presence is Presence.ALWAYS
        return nullcontext() if is_sure else self.printer.indented(f"if {flag}:")

    def start(self, statements: Sequence[Statement]) -> None:
        """No variable that the statements assign has a cotangent yet."""
        for variable in defined(statements):
            self.forget(variable)

    def forget(self, variable: Variable) -> None:
        """The variable has no cotangent."""
        if variable.name in self.active:
            zero = self.printer.number(0, variable.dtype)
            self.printer.add(f"d_{variable.name}, h_{variable.name} = {zero}, {self.printer.NO}")
            self.states[variable.name] = Presence.NEVER

    def all(self, statements: Sequence[Statement]) -> None:
        """Statements from the last to the first."""
        for statement in reversed(statements):
            match statement:
                case Assign():
                    self._assign(statement)
                case Choose():
                    self._choose(statement)
                case Repeat():
                    self._repeat(statement)

    def _assign(self, statement: Assign) -> None:
        target = statement.target.name
        presence = self.states.get(target, Presence.NEVER)
        if presence is Presence.NEVER:
            return
        names = {"g": f"d_{target}", "y": target}
        for atom, rule in zip(statement.operands, statement.op.derivatives, strict=True):
            if rule is not None and names_of([atom]) & self.active:
                operands = statement.operands
                expression = self.printer.expand(rule, statement.computes, operands, **names)
                self.contribute(atom, expression, presence, f"h_{target}")
                self.used |= self._reads(rule, statement)

    def _reads(self, rule: str, statement: Assign) -> set[str]:
        """The values that a derivative reads."""
        read = [x for k, x in enumerate(statement.operands) if f"{{{k}}}" in rule]
        return names_of(read) | ({statement.target.name} if "{y}" in rule else set())

    def _choose(self, statement: Choose) -> None:
        if not self._has_active(statement):
            return
        self.used |= names_of([statement.condition])
        before, merged = dict(self.states), None
        heads = ("else:", f"if {self.printer.is_true(statement.condition)}:")
        arms = list(zip(heads, statement.arms, statement.results, strict=True))
        for head, arm, results in reversed(arms):
            self.states = dict(before)
            with self.printer.indented(head):
                for target, result in zip(statement.targets, results, strict=True):
                    self.copy_back(target, result)
                self.all(arm)
            merged = self.states if merged is None else join(merged, self.states)
        assert merged is not None
        self.states = merged

    def _is_needed(self, statement: Statement) -> bool:
        needed = self.needed
        return needed is None or any(x.name in needed for x in defined([statement]))

    def _has_active(self, statement: Statement) -> bool:
        return any(variable.name in self.active for variable in defined([statement]))

    def copy_back(self, target: Variable, source: Atom) -> None:
        """What a variable was copied from gets its cotangent."""
        presence = self.states.get(target.name, Presence.NEVER)
        if presence is not Presence.NEVER:
            self.contribute(source, f"d_{target.name}", presence, f"h_{target.name}")

    # ---- loops -----------------------------------------------------------------------------------

    def _repeat(self, statement: Repeat) -> None:
        """An inner loop, whose iterations are on the stacks."""
        if not is_active(statement, self.active):
            return

        def pop(printer: Printer) -> None:
            for dtype, variables in by_dtype(statement.carried).items():
                printer.add(f"top_{dtype} -= {len(variables)}")
                for place, variable in enumerate(variables):
                    source = printer.load(f"stack_{dtype}", f"top_{dtype} + {place}")
                    printer.add(f"{variable.name} = {source}")

        self.printer.begin_pops()
        self.go_back(statement, pop)
        for variable, initial in zip(statement.carried, statement.initial, strict=True):
            self.copy_back(variable, initial)

    def go_back(self, statement: Repeat, load: Load) -> None:
        """All iterations from the last to the first; `load` finds what one started from."""
        states = self._steady(statement, load)
        self.states = dict(states)
        with self.printer.counted(statement.number):
            self._iteration(statement, load)
        self.states = join(states, self.states)

    def _steady(self, statement: Repeat, load: Load) -> States:
        """What is known before an iteration is reversed, however many have been."""
        states = dict(self.states)
        while True:
            trial = replace(self, printer=self.printer.another(), states=dict(states))
            trial._iteration(statement, load)
            joined = join(states, trial.states)
            if joined == states:
                return states
            states = joined

    def _iteration(self, statement: Repeat, load: Load) -> None:
        load(self.printer)
        self.printer.pulse()
        self.printer.all([item for item in statement.body if self._is_needed(item)])
        carried = [x for x in statement.carried if x.name in self.active]
        presences = {x.name: self.states.get(x.name, Presence.NEVER) for x in carried}
        for variable in carried:
            name = variable.name
            self.printer.add(f"e_{name}, f_{name} = d_{name}, h_{name}")
            self.forget(variable)
        self.start(statement.body)
        for variable, result in zip(statement.carried, statement.following, strict=True):
            presence = presences.get(variable.name, Presence.NEVER)
            if presence is not Presence.NEVER:
                name = variable.name
                self.contribute(result, f"e_{name}", presence, f"f_{name}")
        self.all(statement.body)
