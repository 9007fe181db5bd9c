"""Calls of a `ps.function` as plain Python: under `ps.set_eager`, and where torch differentiates or
vectorises what runs (`torch.func`, forward mode), since it sees no further than torch's own calls.

Arguments and results are tensors as in a program, and random numbers have the same keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.api.columns import as_tensor
from penstock.api.instances import common_count, naming_instance
from penstock.api.markers import Shared
from penstock.api.outputs import in_form_of_values
from penstock.calls.structure import map_leaves
from penstock.capture import eager_keys
from penstock.capture.active import state
from penstock.capture.leaves import as_values
from penstock.capture.signatures import Callee
from penstock.capture.static import Static, is_static
from penstock.capture.transforms import is_transformed
from penstock.run.seeds import Seed


def call_eagerly(
    callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any], seed: Seed, number: int
) -> Any:
    """What the function returns for one instance, by its number."""
    plain_args, plain_kwargs = plain_arguments(callee.bind(args, kwargs))
    with eager_keys.instance(seed, number), _naming_map(callee.name):
        returned = callee.function(*plain_args, **plain_kwargs)
    return as_values(returned, f"{callee.name}: what the function returns", "result")


def runs_eagerly() -> bool:
    """Whether calls of programs are plain Python here."""
    return state.eager or is_transformed()


@contextmanager
def _naming_map(name: str) -> Iterator[None]:
    """Say what to do about torch's error for decisions inside of `torch.func.vmap`."""
    try:
        yield
    except RuntimeError as error:
        if str(error).startswith("vmap: It looks like"):
            error.add_note(f"Use {name}.map in the place of vmap: it lets each instance decide.")
        raise


def map_eagerly(
    callee: Callee,
    columns: Sequence[Any],
    out: str,
    shared: dict[str, Any],
    *,
    returns_errors: bool = False,
) -> Any:
    """What it returns for each instance, in the form that `map` was asked for."""
    count = common_count(columns)
    rows = [
        [c if isinstance(c, Shared | Static) else c[number] for c in columns]
        for number in range(count)
    ]
    results: list[Any] = []
    seed = Seed()
    for number, row in enumerate(rows):
        try:
            with naming_instance(number if count > 1 else None, callee.name):
                results.append(call_eagerly(callee, tuple(row), shared, seed, number))
        except Exception as error:
            if not returns_errors:
                raise
            results.append(error)
    return in_form_of_values(out, results)


def plain_arguments(bound: tuple[Any, Any]) -> Any:
    """Arguments as plain code gets them: numbers as tensors, markers taken off."""
    return map_leaves(_eager_leaf, bound)


def _eager_leaf(leaf: Any) -> Any:
    value = leaf.value if isinstance(leaf, Shared | Static) else leaf
    return value if isinstance(leaf, Static) or is_static(value) else as_tensor(value, "argument")
