"""`return`, `break` and `continue` as plain assignments, so that control only leaves a block at its
end.

Where one arm of an `if` ends early, what follows the `if` moves into the other arm; nothing else is
needed for most programs. Where both arms may go on, a flag tells what to skip. A `return` at the
end of every path of the function stays: `if` then chooses between values.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TypeVar

from penstock.conversion.build import PREFIX, at

_Part = TypeVar("_Part", ast.ExceptHandler, ast.match_case)

_LOOPS = (ast.While, ast.For)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a block stands."""

    #: The flag and variable of a `return` here; None where `return` may stay.
    returned: tuple[str, str] | None = None
    #: The flags of the innermost loop.
    broken: str = ""
    continued: str = ""
    #: Whether nothing of the function, or of the iteration, follows the block.
    is_last: bool = True


class Escapes:
    """Lowers the body of one function."""

    def __init__(self) -> None:
        self._count = 0
        #: Variables that hold what a function returns, with the flag that says whether they do.
        self.returned: dict[str, str] = {}

    def lower(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The body without `break` and `continue`; each `return` ends a path of the function."""
        return self._block(body, _Place())

    def _fresh(self, what: str) -> str:
        self._count += 1
        return f"{PREFIX}{what}_{self._count}"

    def _block(self, block: list[ast.stmt], place: _Place) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        for number, statement in enumerate(block):
            rest = block[number + 1 :]
            match statement:
                case ast.Return():
                    return [*done, *_returning(statement, place)]
                case ast.Break():
                    return [*done, _set(place.broken, True, statement)]
                case ast.Continue():
                    skipped = [] if place.is_last else [_set(place.continued, True, statement)]
                    return [*done, *skipped]
                case ast.Raise():
                    return [*done, statement]
                case ast.If() if escapes(statement):
                    return [*done, *self._if(statement, rest, place)]
                case ast.While() | ast.For():
                    lowered, remaining = self._loop(statement, rest, place)
                    done += lowered
                    if remaining is not None:
                        return [*done, *self._block(remaining, place)]
                case ast.With() | ast.Try() | ast.Match() if escapes(statement):
                    return [*done, *self._container(statement, rest, place)]
                case ast.With() | ast.Try() | ast.Match() | ast.If():
                    done.append(self._inside(statement, place))
                case _:
                    done.append(statement)
        return done

    def _if(self, node: ast.If, rest: list[ast.stmt], place: _Place) -> list[ast.stmt]:
        body, orelse = node.body, node.orelse
        if rest and not falls_through(body):
            orelse, rest = [*orelse, *rest], []
        elif rest and not falls_through(orelse):
            body, rest = [*body, *rest], []
        if not rest and (place.is_last or place.returned is not None or not _returns(node)):
            lowered = ast.If(
                node.test, self._block(body, place) or [_pass(node)], self._block(orelse, place)
            )
            return [at(lowered, node)]
        inner, before = self._flagged(node, place)
        inner = replace(inner, is_last=False)
        lowered = ast.If(
            node.test, self._block(body, inner) or [_pass(node)], self._block(orelse, inner)
        )
        return [
            *before,
            at(lowered, node),
            *self._guarded(rest, node, inner, place),
        ]

    def _flagged(self, node: ast.stmt, place: _Place) -> tuple[_Place, list[ast.stmt]]:
        """The place inside a statement that others follow, and what comes before it."""
        if place.returned is not None or "return" not in escapes(node):
            return place, []
        flag, value = self._fresh("has_returned"), self._fresh("returned")
        self.returned[value] = flag
        return replace(place, returned=(flag, value)), [_set(flag, False, node)]

    def _guarded(
        self, rest: list[ast.stmt], node: ast.stmt, inner: _Place, place: _Place
    ) -> list[ast.stmt]:
        """What follows a statement that may have set flags."""
        found = escapes(node)
        if "return" in found and inner.returned is not None and place.returned is None:
            flag, value = inner.returned
            leave: ast.stmt = ast.Return(_load(value, node))
            leave = ast.If(_load(flag, node), [at(leave, node)], [])
            return self._block([at(leave, node), *rest], place)
        flags = [place.broken] if "break" in found else []
        flags += [place.continued] if "continue" in found and not inner.is_last else []
        flags += [inner.returned[0]] if "return" in found and inner.returned is not None else []
        if not rest or not flags:
            return self._block(rest, place)
        return [_unless(flags, self._block(rest, place), node)]

    def _loop(
        self, node: ast.While | ast.For, rest: list[ast.stmt], place: _Place
    ) -> tuple[list[ast.stmt], list[ast.stmt] | None]:
        """The lowered loop, and what has to be lowered after it; None where that is the rest."""
        inner, before = self._flagged(node, place)
        found = set().union(*(escapes(statement) for statement in node.body))
        flags = []
        broken = continued = ""
        if "break" in found:
            broken = self._fresh("broken")
            before.append(_set(broken, False, node))
            flags.append(broken)
        if "return" in found and inner.returned is not None:
            flags.append(inner.returned[0])
        if "continue" in found:
            continued = self._fresh("continued")
        inside = _Place(inner.returned, broken, continued, is_last=True)
        body = self._block(node.body, inside) or [_pass(node)]
        if any(isinstance(n, ast.Name) and n.id == continued for s in body for n in ast.walk(s)):
            body = [_set(continued, False, node), *body]
        lowered = self._with_flags(node, body, flags)
        last = node.orelse if not broken else [_unless([broken], node.orelse, node)]
        rest = [*(last if node.orelse else []), *rest]
        if "return" in found:
            return [*before, lowered, *self._guarded(rest, node, inner, place)], []
        return [*before, lowered], rest if node.orelse else None

    def _with_flags(
        self, node: ast.While | ast.For, body: list[ast.stmt], flags: list[str]
    ) -> ast.stmt:
        lowered: ast.While | ast.For
        if isinstance(node, ast.While):
            lowered = ast.While(_test(node, flags), body, [])
        else:
            lowered = ast.For(node.target, node.iter, body, [])
            lowered.goes_on = _not_any(flags, node) if flags else None  # type: ignore[attr-defined]
        return at(lowered, node)

    def _container(self, node: ast.stmt, rest: list[ast.stmt], place: _Place) -> list[ast.stmt]:
        """`with`, `try` or `match` around a `return`, `break` or `continue`."""
        has_orelse = isinstance(node, ast.Try) and bool(node.orelse)
        if not rest and not has_orelse and (place.is_last or place.returned is not None):
            return [self._inside(node, place)]
        inner, before = self._flagged(node, place)
        inner = replace(inner, is_last=False)
        return [
            *before,
            self._inside(node, inner),
            *self._guarded(rest, node, inner, place),
        ]

    def _inside(self, node: ast.stmt, place: _Place) -> ast.stmt:
        """The statement with each of its blocks lowered."""
        match node:
            case ast.If():
                made: ast.stmt = ast.If(
                    node.test, self._block(node.body, place), self._block(node.orelse, place)
                )
            case ast.With():
                made = ast.With(node.items, self._block(node.body, place))
            case ast.Try():
                made = ast.Try(
                    self._block(node.body, place),
                    [_replaced(h, body=self._block(h.body, place)) for h in node.handlers],
                    self._orelse(node, place),
                    self._block(node.finalbody, place),
                )
            case ast.Match():
                cases = [_replaced(c, body=self._block(c.body, place)) for c in node.cases]
                made = ast.Match(node.subject, cases)
            case _:
                raise AssertionError(type(node))
        if not isinstance(made, ast.Match) and not made.body:  # type: ignore[attr-defined]
            made.body = [_pass(node)]  # type: ignore[attr-defined]
        return at(made, node)

    def _orelse(self, node: ast.Try, place: _Place) -> list[ast.stmt]:
        """The `else` of a `try`, which a `return`, `break` or `continue` before it skips."""
        block = self._block(node.orelse, place)
        found = set().union(*(escapes(statement) for statement in node.body))
        flags = [place.broken] if "break" in found else []
        flags += [place.continued] if "continue" in found else []
        flags += [place.returned[0]] if "return" in found and place.returned is not None else []
        return [_unless(flags, block, node)] if block and flags else block


def escapes(node: ast.AST) -> set[str]:
    """Which of `return`, `break` and `continue` may leave the statement."""
    match node:
        case ast.Return():
            return {"return"}
        case ast.Break():
            return {"break"}
        case ast.Continue():
            return {"continue"}
        case ast.While() | ast.For():
            inside: set[str] = set().union(*(escapes(child) for child in node.body))
            last: set[str] = set().union(*(escapes(child) for child in node.orelse))
            return (inside & {"return"}) | last
    if isinstance(node, (*_FUNCTIONS, ast.expr)):
        return set()
    return set().union(*(escapes(child) for child in ast.iter_child_nodes(node)))


def falls_through(block: list[ast.stmt]) -> bool:
    """Whether control may reach the end of the block."""
    return not any(_never_ends(statement) for statement in block)


def _never_ends(node: ast.stmt) -> bool:
    match node:
        case ast.Return() | ast.Break() | ast.Continue() | ast.Raise():
            return True
        case ast.If():
            return not falls_through(node.body) and not falls_through(node.orelse)
        case ast.With():
            return not falls_through(node.body)
        case ast.While():
            has_break = any("break" in escapes(child) for child in node.body)
            return isinstance(node.test, ast.Constant) and bool(node.test.value) and not has_break
    return False


def _returns(node: ast.stmt) -> bool:
    return "return" in escapes(node)


def _returning(node: ast.Return, place: _Place) -> list[ast.stmt]:
    if place.returned is None:
        return [node]
    flag, name = place.returned
    value = node.value or at(ast.Constant(None), node)
    store = ast.Assign([ast.Name(name, ast.Store())], value)
    return [at(store, node), _set(flag, True, node)]


def _replaced(node: _Part, **fields: object) -> _Part:
    made = type(node)(**{**dict(ast.iter_fields(node)), **fields})
    return at(made, node)


def _set(name: str, value: bool, node: ast.AST) -> ast.stmt:
    return at(ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value)), node)


def _load(name: str, node: ast.AST) -> ast.expr:
    return at(ast.Name(name, ast.Load()), node)


def _pass(node: ast.AST) -> ast.stmt:
    return at(ast.Pass(), node)


def _not_any(flags: list[str], node: ast.AST) -> ast.expr:
    terms: list[ast.expr] = [at(ast.UnaryOp(ast.Not(), _load(flag, node)), node) for flag in flags]
    return terms[0] if len(terms) == 1 else at(ast.BoolOp(ast.And(), terms), node)


def _unless(flags: list[str], block: list[ast.stmt], node: ast.AST) -> ast.stmt:
    return at(ast.If(_not_any(flags, node), block or [_pass(node)], []), node)


def _test(node: ast.While, flags: list[str]) -> ast.expr:
    """The condition of a loop that flags may end."""
    if not flags:
        return node.test
    if isinstance(node.test, ast.Constant) and node.test.value:
        return _not_any(flags, node)
    return at(ast.BoolOp(ast.And(), [_not_any(flags, node), node.test]), node)
