"""Rewrites that turn vmap's output into the code one would write by hand for a batch.

Each pass walks the code once and builds new code. A rule sees a step whose arguments are already
rewritten and returns the step that stands for it, or None to leave it. Equal steps are built once.
All rules rest on the code being functional; a reshape may therefore stand for any view, and no copy
is kept for its own sake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from penstock.run.batched.steps import Fact, Step, StraightLine, map_leaves

Rule = Callable[["Rewriter", Step], Step | None]


class Rewriter:
    """One pass over one piece of code."""

    def __init__(self, code: StraightLine, rule: Rule) -> None:
        self.code = code
        self.rule = rule
        self.steps: list[Step] = []
        #: How often the step that a new step stands for is read in the old code.
        self.uses: dict[Step, int] = {step: code.uses[step] for step in code.inputs}
        self._known: dict[Any, Step] = {}

    def run(self) -> StraightLine:
        """The rewritten code, without dead steps."""
        new: dict[Step, Step] = {step: step for step in self.code.inputs}

        def renew(leaf: Any) -> Any:
            return new[leaf] if isinstance(leaf, Step) else leaf

        for old in self.code.steps:
            if old.constant is not None:
                new[old] = old
                self.steps.append(old)
            else:
                args, kwargs = map_leaves(renew, old.args), map_leaves(renew, old.kwargs)
                new[old] = self.call(old.target, args, kwargs, old.fact)
            self.uses[new[old]] = self.uses.get(new[old], 0) + self.code.uses[old]
        outputs = tuple(new[step] for step in self.code.outputs)
        return StraightLine(self.code.inputs, tuple(self.steps), outputs).live()

    def call(
        self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], fact: Fact
    ) -> Step:
        """The step for a call: an equal one made before, or what the rule makes of it."""
        key = (target, _frozen(args), _frozen(kwargs))
        if key not in self._known:
            step = Step(target, args, kwargs, fact)
            better = self.rule(self, step)
            if better is None:
                self.steps.append(step)
            self._known[key] = better or step
        return self._known[key]

    def literal(self, tensor: torch.Tensor, fact: Fact) -> Step:
        """A constant made in this pass."""
        step = Step(None, (), {}, fact, constant=tensor, is_literal=True)
        self.steps.append(step)
        return step

    def used_once(self, step: Step) -> bool:
        """Whether one reader at most depends on this step; steps made in this pass have one."""
        return self.uses.get(step, 1) <= 1


def rewrite(code: StraightLine, *rules: Rule) -> StraightLine:
    """The code after one pass for each rule, in order."""
    for rule in rules:
        code = Rewriter(code, rule).run()
    return code


def first_of(*rules: Rule) -> Rule:
    """The rule that tries several in order."""

    def rule(rewriter: Rewriter, step: Step) -> Step | None:
        results = (attempt(rewriter, step) for attempt in rules)
        return next((result for result in results if result is not None), None)

    return rule


def _frozen(tree: Any) -> Any:
    """Arguments in a hashable form that tells 1, 1.0 and True apart."""
    if isinstance(tree, (list, tuple)):
        return tuple(map(_frozen, tree))
    if isinstance(tree, Mapping):
        return tuple((key, _frozen(item)) for key, item in tree.items())
    return tree if isinstance(tree, Step) else (type(tree), repr(tree))
