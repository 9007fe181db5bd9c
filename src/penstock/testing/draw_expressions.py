"""Random expressions, drawn through hypothesis so that failing examples shrink.

The first choice is always the simplest: the variable that was bound last, then a constant, then an
operation.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from penstock.testing.expressions import (
    BOOL,
    ELEMENT_OF,
    FLOAT,
    INT,
    INTS,
    RULES,
    VECTOR,
    VECTORS,
    Constant,
    Expression,
    Kind,
    Operation,
    Variable,
)
from penstock.testing.statements import Each, Expressions, Variables

_CONSTANTS: dict[Kind, st.SearchStrategy[bool | int | float]] = {
    INT: st.integers(-4, 6),
    BOOL: st.booleans(),
    FLOAT: st.sampled_from([0.0, 0.5, 1.0, -1.5]),
    VECTOR: st.sampled_from([0.0, 0.25, -1.0]),
}

#: How many operations an expression may nest.
_DEEPEST = 2


class ExpressionDrawer:
    """Draws expressions over the variables of a scope, the last bound variable first."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        #: How many variables were made; their numbers make names unique.
        self._made = 0
        #: Whether a value may be asked for its contents where this expression stands.
        self.has_contents = True

    def flip(self) -> bool:
        """True or, more simply, False."""
        return self.draw(st.booleans())

    def variable(self, kind: Kind) -> Variable:
        """A new variable."""
        self._made += 1
        return Variable(f"{kind.value}{self._made}", kind)

    def variables(self, kinds: Sequence[Kind]) -> Variables:
        """New variables."""
        return tuple(self.variable(kind) for kind in kinds)

    def kinds(self, choices: Sequence[Kind], most: int, least: int = 1) -> list[Kind]:
        """A few kinds, the same one more than once perhaps."""
        return self.draw(st.lists(st.sampled_from(choices), min_size=least, max_size=most))

    def expression(self, kind: Kind, scope: Variables, depth: int = _DEEPEST) -> Expression:
        """An expression of that kind; of a sequence, only where the scope has a sequence."""
        known = [variable for variable in reversed(scope) if variable.kind is kind]
        rules = self._rules(kind, scope) if depth else []
        # Constants are rare, or little would depend on the inputs.
        choices = ["variable"] * (3 * bool(known)) + ["constant"] * (kind in _CONSTANTS)
        choices += ["operation"] * (4 * bool(rules))
        match self.draw(st.sampled_from(choices)):
            case "variable":
                return self.draw(st.sampled_from(known))
            case "constant":
                return Constant(self.draw(_CONSTANTS[kind]), kind)
            case _:
                return self._operation(self.draw(st.sampled_from(rules)), scope, depth - 1)

    def expressions(self, kinds: Sequence[Kind], scope: Variables) -> Expressions:
        """An expression of each kind."""
        return tuple(self.expression(kind, scope) for kind in kinds)

    def predicate(self, scope: Variables) -> Expression:
        """A truth value; often from comparing whole numbers or floats."""
        rule = self.draw(st.sampled_from([None, "less", "below", "above"]))
        if rule is None:
            return self.expression(BOOL, scope)
        return self._operation(rule, scope, _DEEPEST - 1)

    def each(self, scope: Variables) -> Each:
        """The elements of a sequence, or of two with the same length."""
        first = self.draw(st.sampled_from(sequences_in(scope)))
        sequences: list[Expression] = [first]
        if self.flip():
            rules = ["shift_all", "embed_all"] if first.kind is INTS else ["linear_all"]
            others = scope_without_sequences(scope)
            rule = self.draw(st.sampled_from(rules))
            sequences.append(self._operation(rule, (*others, first), 0, first))
        elements = self.variables([ELEMENT_OF[sequence.kind] for sequence in sequences])
        return Each(elements, tuple(sequences))

    def _rules(self, kind: Kind, scope: Variables) -> list[str]:
        known = {variable.kind for variable in scope}
        return [
            name
            for name, rule in RULES.items()
            if rule.result is kind
            and rule.is_bounded
            and (self.has_contents or not rule.needs_contents)
            and known.union(_CONSTANTS).issuperset(rule.arguments)
            and known.intersection(rule.arguments)
        ]

    def _operation(
        self, name: str, scope: Variables, depth: int, first: Expression | None = None
    ) -> Operation:
        kinds = RULES[name].arguments
        leading = () if first is None else (first,)
        rest = (self.expression(kind, scope, depth) for kind in kinds[len(leading) :])
        return Operation(name, (*leading, *rest))


def sequences_in(scope: Variables) -> list[Variable]:
    """The sequences of a scope, the last bound first."""
    return [variable for variable in reversed(scope) if variable.kind in (INTS, VECTORS)]


def scope_without_sequences(scope: Variables) -> Variables:
    """The other variables of a scope."""
    return tuple(variable for variable in scope if variable.kind not in (INTS, VECTORS))
