"""`if` on a traced value: both branches are traced, and the variables that they assign are joined.

What both branches leave as it was stays what it is. Of the rest, only what is read later leaves the
branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.calls.structure import flatten
from penstock.capture.active import active_tracer
from penstock.capture.converted.decisions import as_bool, as_predicate, is_open, not_
from penstock.capture.converted.effects import refuse_in_try
from penstock.capture.converted.joins import RESULT, Joined, Outcome
from penstock.capture.converted.lists import UnknownElements
from penstock.capture.converted.undefined import Undefined, in_one_branch, used_up
from penstock.capture.converted.variables import Values, Variables
from penstock.capture.leaf_types import LeafType
from penstock.capture.recursion import UnresolvedRecursion
from penstock.capture.tensor_array import TensorArray
from penstock.capture.traced_tensor import TracedTensor
from penstock.ir.program import Body, Branch

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer

Block = Callable[[], Any]


def if_stmt(
    test: Any, then: Block, orelse: Block, get: Any, set_: Any, facts: tuple[tuple[str, str], ...]
) -> None:
    """`if test: then() else: orelse()`, for what the blocks do to variables."""
    if _is_decided(test, then, orelse) is not None:
        return
    tracer = _tracer_of_if()
    pred = as_predicate(tracer, test, "if: the condition")
    variables = Variables(get, set_, facts)
    before = variables.prepare(tracer)

    def run(block: Block) -> Values:
        variables.enter(tracer, before)
        block()
        return variables.values()

    outcomes = _trace(tracer, "if", {"else": lambda: run(orelse), "if": lambda: run(then)})
    variables.assign(before)
    names = variables.marked("l")
    after = _join(tracer, "if", pred, outcomes, names, variables.marked("r"))
    dropped = {name: used_up(name) for name in before if name not in after}
    unchanged = {
        name: before[name]
        for name in dropped
        if all(item.values is None or item.values[name] is before[name] for item in outcomes)
    }
    variables.assign({**dropped, **unchanged, **after})


def if_return(
    test: Any, then: Block, orelse: Block, get: Any, set_: Any, facts: tuple[tuple[str, str], ...]
) -> Any:
    """`return then() if test else orelse()`, where the blocks may assign variables too."""
    decided = _is_decided(test, then, orelse)
    if decided is not None:
        return decided[0]
    tracer = _tracer_of_if()
    variables = Variables(get, set_, facts)
    before = variables.prepare(tracer)
    pred = as_predicate(tracer, test, "if: the condition")

    def run(block: Block) -> Any:
        variables.enter(tracer, before)
        return block()

    value = choose(tracer, pred, lambda: run(then), lambda: run(orelse), what="if")
    variables.assign(before)
    return value


def if_exp(test: Any, then: Block, orelse: Block) -> Any:
    """`then() if test else orelse()`."""
    decided = _is_decided(test, then, orelse)
    if decided is not None:
        return decided[0]
    tracer = _tracer_of_if()
    pred = as_predicate(tracer, test, "if: the condition")
    return choose(tracer, pred, then, orelse, what="if")


def _tracer_of_if() -> Tracer:
    """The tracer, for an `if` that a run has to decide."""
    tracer = active_tracer()
    assert tracer is not None
    refuse_in_try("`if`")
    return tracer


def _is_decided(test: Any, then: Block, orelse: Block) -> tuple[Any] | None:
    """What the block that Python chooses returns, in a tuple; None where a run has to choose."""
    tracer = active_tracer()
    if tracer is None:
        return (then() if test else orelse(),)
    if is_open(test):
        return None
    chosen = bool(test)
    with tracer.scope.decided_branch(int(chosen)):
        return (then() if chosen else orelse(),)


def choose(tracer: Tracer, pred: TracedTensor, then: Block, orelse: Block, *, what: str) -> Any:
    """The value of one of two functions."""
    functions = {
        "else": lambda: {RESULT: orelse()},
        "if": lambda: {RESULT: then()},
    }
    outcomes = _trace(tracer, what, functions)
    return _join(tracer, what, pred, outcomes, [RESULT], [])[RESULT]


def _trace(tracer: Tracer, what: str, functions: dict[str, Callable[[], Values]]) -> list[Outcome]:
    """What each branch does; one that needs an unfinished recursion has no values."""
    outcomes: list[Outcome] = []
    open_ends: list[UnresolvedRecursion | UnknownElements] = []
    for name, function in functions.items():
        with tracer.nested_scope() as scope:
            try:
                outcomes.append(Outcome(f"{name} branch", scope, function()))
            except (UnresolvedRecursion, UnknownElements) as error:
                open_ends.append(error)
                outcomes.append(Outcome(f"{name} branch", scope, None))
    if len(open_ends) == len(functions):
        raise open_ends[0]
    for left in open_ends:
        if isinstance(left, UnresolvedRecursion):
            tracer.signatures.missing.add(left.record)
    return outcomes


def _join(
    tracer: Tracer,
    what: str,
    pred: TracedTensor,
    outcomes: list[Outcome],
    names: Sequence[str],
    returned: Sequence[str],
) -> Values:
    """The variables after the branches."""
    resolved = [item for item in outcomes if item.values is not None]
    joined: list[Joined] = []
    after: Values = {}
    for name in names:
        values = [item.values[name] for item in resolved]
        if all(value is values[0] for value in values) and _is_outside(tracer, values[0]):
            after[name] = values[0]
            continue
        if [type(value) for value in values] == [bool, bool]:
            after[name] = as_bool(tracer, pred, what) if values[1] else not_(pred)
            continue
        missing = [item.name for item in resolved if isinstance(item.values[name], Undefined)]
        if missing and (name not in returned or len(missing) == len(resolved)):
            present = [item.name for item in resolved if item.name not in missing]
            after[name] = in_one_branch(name, present, missing)
            continue
        joined.append(Joined(tracer, what, name, resolved))
    types = [leaf.type for item in joined for leaf in item.types if isinstance(leaf, LeafType)]
    bodies = []
    for outcome in outcomes:
        if outcome.values is None:
            bodies.append(Body((), (), ()))
            continue
        number = next(n for n, item in enumerate(resolved) if item is outcome)
        bodies.append(outcome.scope.body([v for item in joined for v in item.outputs[number]]))
    if not joined:
        return after
    outputs = iter(tracer.emit(Branch(tuple(bodies), True), (pred,), types))
    for item in joined:
        count = sum(isinstance(leaf, LeafType) for leaf in item.types)
        mine = [next(outputs) for _ in range(count)]
        after[item.name] = item.rebuilt(mine)
    return after


def _is_outside(tracer: Tracer, value: Any) -> bool:
    """Whether a value that all branches have is there without them."""
    for leaf in flatten(value)[0]:
        if isinstance(leaf, TracedTensor) and not tracer.scope.sees(leaf.traced.scope):
            return False
        if isinstance(leaf, TensorArray) and not tracer.scope.sees(leaf.scope):  # type: ignore[attr-defined]
            return False
    return True
