"""Random keys in plain Python: the same as in a graph.

While a `ps.function` runs under `set_eager`, a scope stands for each body that runs: of a function,
a branch, an iteration, an element. It counts random operations and the scopes that open inside it,
as the tracer does, and its key comes from the path to it. Outside of such a call there is no scope,
and torch draws from its own generators.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from penstock.calls.torch_names import name_of, resolve
from penstock.capture.random_calls import RANDOM_RULES, draw_by_rule
from penstock.capture.transforms import is_transformed
from penstock.ir.graph import BODY
from penstock.plan.random_keys import Keys, as_keys, as_signed, mix
from penstock.run.seeds import Seed


@dataclass(slots=True, eq=False)
class _Scope:
    """One run of a body."""

    #: What the key is mixed from: that of the scope around, or the seed.
    origin: _Scope | Seed
    salts: tuple[int, ...]
    #: How many random operations and scopes there are so far.
    sites: int = 0
    #: None until something draws.
    _key: Keys | None = None

    @property
    def key(self) -> Keys:
        """The key of this run."""
        if self._key is None:
            outer = self.origin
            key = as_keys(outer.number) if isinstance(outer, Seed) else outer.key
            self._key = reduce(mix, self.salts, key)
        return self._key

    def next_site(self) -> int:
        """The number of the next random operation or scope inside."""
        self.sites += 1
        return self.sites - 1

    @property
    def seed(self) -> Seed:
        """The seed of the call."""
        return self.origin if isinstance(self.origin, Seed) else self.origin.seed


class _State(threading.local):
    #: The innermost body that runs; None where torch draws by itself.
    scope: _Scope | None = None


_state = _State()


@contextmanager
def instance(seed: Seed, number: int) -> Iterator[None]:
    """A call of a `ps.function`: that instance of a map, or, inside another call, its next site.

    Inside of a transform of torch nothing has a key: `vmap` draws as it was told.
    """
    if is_transformed():
        yield
    elif _state.scope is not None:
        with _inside(next_site()):
            yield
    else:
        with _scope(_Scope(seed, (number,))), _KeyedMode():
            yield


def branch(number: int) -> AbstractContextManager[None]:
    """The branch of that number, of a `cond` or `switch` at the next site."""
    return _inside(next_site(), number)


def next_site() -> int:
    """The number of the next random operation or scope."""
    return 0 if _state.scope is None else _state.scope.next_site()


def condition(site: int, iteration: int) -> AbstractContextManager[None]:
    """The condition of the loop at that site, before an iteration."""
    return _inside(site, iteration)


def body(site: int, number: int) -> AbstractContextManager[None]:
    """The body of the loop or for-each at that site, for an iteration or element."""
    return _inside(site, number, BODY)


@contextmanager
def exploration() -> Iterator[None]:
    """What is drawn inside has types and no meaning."""
    unmeant = _Scope(Seed(0, advances=False), ())
    with _scope(None if _state.scope is None else unmeant):
        yield


@contextmanager
def _inside(*salts: int) -> Iterator[None]:
    outer = _state.scope
    with _scope(None if outer is None else _Scope(outer, salts)):
        yield


@contextmanager
def _scope(scope: _Scope | None) -> Iterator[None]:
    outer, _state.scope = _state.scope, scope
    try:
        yield
    finally:
        _state.scope = outer


class _KeyedMode(TorchFunctionMode):
    """Lets random torch functions draw under keys; all others run as they are."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        if _state.scope is None or name not in RANDOM_RULES:
            return func(*args, **kwargs)
        return draw_by_rule(_KeyedDraws(_state.scope), name, func, args, kwargs)


@dataclass(slots=True)
class _KeyedDraws:
    """Draws in one scope."""

    scope: _Scope

    def draw(self, kind: str, device: torch.device, *args: Any) -> torch.Tensor:
        """The numbers, under the key of the scope's next site."""
        key = int(as_signed(mix(self.scope.key, self.scope.next_site())))
        self.scope.seed.take()
        made: torch.Tensor = resolve(f"penstock.random.{kind}")(
            torch.tensor(key, device=device), *args
        )
        return made

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call as it is: inside a mode's own function the mode is off."""
        return function(*args, **kwargs)

    def watching(self) -> AbstractContextManager[Any]:
        """Torch functions inside come to the mode again."""
        return _KeyedMode()
