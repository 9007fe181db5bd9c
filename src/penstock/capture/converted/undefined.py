"""Variables without a value, in functions whose variables all have one from the start."""

from __future__ import annotations

from typing import Any, NoReturn

from penstock.capture.active import active_tracer
from penstock.capture.location import user_place
from penstock.capture.recursion import UnresolvedRecursion
from penstock.conversion.build import PREFIX
from penstock.errors import UndefinedVariableError, report


class Undefined:
    """Stands for a variable that has no value; every use says why."""

    __slots__ = ("facts", "name")

    def __init__(self, name: str, facts: tuple[tuple[str, str], ...] = ()) -> None:
        self.name = name
        #: Where it has a value and where not; empty where Python would find none either.
        self.facts = facts

    def refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Raise what reading the variable raises."""
        tracer = active_tracer()
        if self.name.startswith(PREFIX) and tracer is not None and tracer.signatures.missing:
            raise UnresolvedRecursion(next(iter(tracer.signatures.missing)))
        if not self.facts:
            raise UnboundLocalError(
                f"cannot access local variable {self.name!r} "
                "where it is not associated with a value"
            )
        raise UndefinedVariableError(
            report(
                f"{self.name} may have no value here.",
                where=user_place(),
                facts=self.facts,
                todo=f"Give {self.name} a value on every path, e.g. before the `if` or loop.",
            )
        )

    def __repr__(self) -> str:
        return f"<no value for {self.name}>"

    def __getattr__(self, name: str) -> NoReturn:
        self.refuse()

    __call__ = __bool__ = __iter__ = __len__ = __getitem__ = __float__ = __int__ = refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = refuse
    __rtruediv__ = __matmul__ = __rmatmul__ = __neg__ = __lt__ = __gt__ = __le__ = refuse
    __ge__ = __floordiv__ = __mod__ = __pow__ = __and__ = __or__ = __invert__ = refuse


def unset(name: str) -> Undefined:
    """What a variable holds before it is assigned."""
    return Undefined(name)


def load(value: Any, name: str) -> Any:
    """The value of a variable that may have none."""
    if isinstance(value, Undefined):
        value.refuse()
    return value


def in_one_branch(name: str, with_value: list[str], without: list[str]) -> Undefined:
    """A variable that only some branches of an `if` assign."""
    facts = [(branch, f"{name} has a value") for branch in with_value]
    facts += [(branch, f"{name} has none") for branch in without]
    return Undefined(name, tuple(facts))


def in_a_loop(name: str) -> Undefined:
    """A variable that only the body of a loop assigns."""
    return Undefined(
        name, (("in the loop", f"{name} has a value"), ("before it", f"{name} has none"))
    )


def used_up(name: str) -> Undefined:
    """A variable that no code after a branch or loop reads, as far as can be seen."""
    return Undefined(
        name, (("assigned", "inside a traced branch or loop"), ("read", "by a function, after it"))
    )
