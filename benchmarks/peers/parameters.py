"""The parameters of a model, as every problem with weights brings them: by name, in torch's layout.

`parameters` has all names in the order of the model, `trained` those that a step of training moves,
in the order in which their gradients come back.
"""

from __future__ import annotations

from typing import Any

#: So small that one model is seen however often it is run.
LEARNING_RATE = 1e-12


def fixed_of(problem: dict[str, Any]) -> dict[str, Any]:
    """The parameters that stay as they are."""
    trained = set(problem["trained"])
    return {name: problem[name] for name in problem["parameters"] if name not in trained}


def trained_of(problem: dict[str, Any]) -> dict[str, Any]:
    """The parameters that are trained, in their order."""
    return {name: problem[name] for name in problem["trained"]}
