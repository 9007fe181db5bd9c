"""A converted function for a live one: same file, lines and names, same closure, same defaults.

Conversion happens once for each code object. What generated code calls is one object, `operators`,
which it finds in a closure cell of its own.
"""

from __future__ import annotations
import __future__

import ast
import functools
import operator
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any

from penstock.conversion.build import OPERATORS, PREFIX, THUNK, at, copied, function, no_arguments
from penstock.conversion.mangle import mangled
from penstock.conversion.source import Definition, NoSourceError, find_definition
from penstock.conversion.statements import convert_function
from penstock.conversion.syntax import is_convertible

#: The flags of code that its `from __future__` imports have set.
_FUTURES = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)


@dataclass(frozen=True, slots=True)
class Conversion:
    """What became of one code object."""

    #: The key, kept alive so that its identity stays its own.
    original: CodeType
    #: None where the function stays as it is.
    code: CodeType | None
    #: Why it stays as it is, as the end of a sentence.
    reason: str = ""


#: By the identity of the code object.
_conversions: dict[int, Conversion] = {}
_generated: dict[int, CodeType] = {}


def converted_function(live: FunctionType, operators: Any) -> FunctionType:
    """`live` with its control flow as calls of `operators`; itself where that cannot be."""
    if id(live.__code__) in _generated:
        return live
    code = conversion_of(live).code
    if code is None:
        return live
    cells = dict(zip(live.__code__.co_freevars, live.__closure__ or (), strict=True))
    cells[OPERATORS] = CellType(operators)
    closure = tuple(cells[name] for name in code.co_freevars)
    made = FunctionType(code, live.__globals__, live.__name__, live.__defaults__, closure)
    made.__kwdefaults__ = live.__kwdefaults__
    made.__qualname__, made.__module__ = live.__qualname__, live.__module__
    made.__dict__.update(live.__dict__)
    return made


def conversion_of(live: FunctionType) -> Conversion:
    """The conversion of a function's code, made when first asked for."""
    known = _conversions.get(id(live.__code__))
    if known is None:
        known = _conversions[id(live.__code__)] = _convert(live)
    return known


def forget_conversions() -> None:
    """Convert everything anew when it is next asked for; converted functions stay what they are."""
    _conversions.clear()


def refusal_of(code: CodeType) -> str | None:
    """Why code that runs as it is was not converted; None where it was, or nobody tried."""
    known = _conversions.get(id(code))
    return known.reason or None if known is not None else None


def is_generated(code: CodeType) -> bool:
    """Whether code was made here."""
    return id(code) in _generated


def _convert(live: FunctionType) -> Conversion:
    original = live.__code__
    try:
        found = find_definition(original, live.__globals__)
        tree = converted_tree(found.node, found.class_name)
        code = _compiled(tree, original)
    except NoSourceError as error:
        return Conversion(original, None, str(error))
    except RecursionError:
        return Conversion(original, None, "its source is nested too deeply")
    for inner in _all_codes(code):
        _generated[id(inner)] = inner
    return Conversion(original, code)


def converted_tree(definition: Definition, class_name: str | None) -> ast.FunctionDef:
    """The converted definition, without decorators; a lambda becomes a function."""
    node = copied(definition)
    if isinstance(node, ast.Lambda):
        body = [at(ast.Return(node.body), node.body)]
        made = function("<lambda>", body, node)
        made.args = node.args
        node = made
    elif not is_convertible(node):
        raise NoSourceError("generators and coroutines are not converted")
    node.decorator_list = []
    _strip(node.args)
    if class_name is not None:
        node = mangled(node, class_name)
    return convert_function(node)


def _strip(arguments: ast.arguments) -> None:
    """Defaults and annotations belong to the live function."""
    nothing = ast.Constant(None)
    arguments.defaults = [at(nothing, item) for item in arguments.defaults]
    keyword = arguments.kw_defaults
    arguments.kw_defaults = [None if item is None else at(nothing, item) for item in keyword]
    extra = [item for item in (arguments.vararg, arguments.kwarg) if item is not None]
    for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *extra):
        item.annotation = None


def _compiled(tree: ast.FunctionDef, original: CodeType) -> CodeType:
    """The code of the converted function, with the closure variables of the original."""
    tree.name = f"{PREFIX}function"
    around = function(f"{PREFIX}around", [tree], tree)
    names = [OPERATORS, *original.co_freevars]
    around.args = no_arguments(args=[ast.arg(name) for name in names])
    module = ast.Module([at(around, tree)], [])
    flags = original.co_flags & _FUTURES
    compiled = compile(module, original.co_filename, "exec", flags=flags, dont_inherit=True)
    outer = next(item for item in compiled.co_consts if isinstance(item, CodeType))
    code = next(item for item in outer.co_consts if isinstance(item, CodeType))
    return _renamed(code, original.co_name, original.co_qualname)


def _renamed(code: CodeType, name: str, qualified: str) -> CodeType:
    """The code and all in it under the names that the user gave."""
    constants = []
    for item in code.co_consts:
        if isinstance(item, CodeType):
            made_here = item.co_name.startswith(PREFIX) or THUNK in item.co_varnames
            own = f"{qualified}.<locals>.{item.co_name}"
            item = _renamed(item, *((name, qualified) if made_here else (item.co_name, own)))
        constants.append(item)
    return code.replace(co_name=name, co_qualname=qualified, co_consts=tuple(constants))


def _all_codes(code: CodeType) -> list[CodeType]:
    inner = [item for item in code.co_consts if isinstance(item, CodeType)]
    return [code, *(found for item in inner for found in _all_codes(item))]
