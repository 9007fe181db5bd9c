"""Scalar loops in JAX: `vmap` of `lax.while_loop`, and a masked `lax.scan` where gradients flow.

There is no structure to prepare; compilation comes before the timed part.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.peers.serve import limit_threads, serve

limit_threads(int(sys.argv[2]))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from benchmarks.peers.loop_problem import NEAR, PROGRAMS  # noqa: E402

jax.config.update("jax_enable_x64", True)  # Collatz goes beyond 32 bits


def collatz(n: Any) -> Any:
    """Rows that are done wait for the last."""

    def step(state: Any) -> Any:
        n, count = state
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1

    def steps(n: Any) -> Any:
        return jax.lax.while_loop(lambda state: state[0] != 1, step, (n, jnp.zeros_like(n)))[1]

    return jax.vmap(steps)(n)


def relaxation(bound: int, *columns: Any) -> Any:
    """Final values, and the gradients of their sum; all rows make `bound` steps."""

    def final(x: Any, target: Any, rate: Any) -> Any:
        def step(x: Any, _: Any) -> Any:
            return jnp.where(abs(target - x) > NEAR, x + rate * (target - x), x), None

        found, _ = jax.lax.scan(step, x, length=bound)
        return found.sum(), found

    gradients, found = jax.grad(final, argnums=(0, 1, 2), has_aux=True)(*columns)
    return found, *gradients


def prepare(problem: dict[str, Any]) -> tuple[Callable[[], None], Callable[[], Sequence[Any]]]:
    """One call over all instances."""
    name = str(problem["program"])
    columns = [jnp.asarray(problem[column]) for column in PROGRAMS[name][1]]
    if name == "relaxation":
        bound = int(problem["bound"])
        run: Any = jax.jit(lambda *columns: relaxation(bound, *columns))
    else:
        run = jax.jit(collatz)

    def work() -> None:
        jax.block_until_ready(run(*columns))

    def results() -> Sequence[Any]:
        found = run(*columns)
        whole = found if isinstance(found, tuple) else (found,)
        return [np.asarray(value) for value in whole]

    return work, results


if __name__ == "__main__":
    serve(prepare, f"JAX {jax.__version__}")
