"""What a function can reach: the values that its code, and all user code that it may call, can find
without being given them.

The walk goes through globals, closure cells, defaults, bound objects, classes, containers and
objects, as far as names in that code lead: an attribute that no code names is not followed. It
calls nothing of the user's. What lies in containers of more than `MOST_ITEMS` is found, but not
what lies in that; nor is library code followed, nor more than `MOST_FOLLOWED` containers and
objects.
"""

from __future__ import annotations

import dis
import functools
from collections import deque
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from penstock.capture.lazy.guarded_values import original_of
from penstock.capture.looks import Looks, cell_is_filled
from penstock.capture.user_code import is_opaque, is_user_code, is_users

#: Bounds to what is followed, as all of it is looked at in every call.
MOST_ITEMS, MOST_FOLLOWED = 256, 2000

CONTAINERS = (list, tuple, dict, set, frozenset, deque)

#: What leads nowhere.
_ENDS = (bool, int, float, complex, str, bytes, type(None), torch.Tensor, BuiltinFunctionType)

#: What leads to code, and is followed however much there is.
_CODE = (FunctionType, MethodType, ModuleType, nn.Module, type, functools.partial)

#: Attributes that count though no code names them, of modules that library code works on.
_PLAIN = (*_ENDS, *CONTAINERS, FunctionType)

#: By these names, code finds attributes that it does not name.
_OPEN = frozenset(
    ["getattr", "vars", "__dict__", "__getattribute__", "attrgetter", "methodcaller", "asdict"]
)

#: By these names, code asks whether an object has an attribute.
_ASKING = frozenset(["getattr", "hasattr"])

#: Methods that only make, show, compare or copy an object.
_ASIDE = frozenset(["__init__", "__new__", "__post_init__", "__repr__", "__str__", "__eq__"]) | {
    *("__hash__", "__getstate__", "__setstate__", "__reduce__", "__deepcopy__", "__copy__"),
}

#: What every module has of itself.
TORCH_OWN = frozenset(vars(nn.Module()))

#: Attributes of ours on the user's objects.
_OURS = "_penstock"


class Names(NamedTuple):
    """The names in one code object, and in those nested in it."""

    #: Looked up as globals.
    of_globals: frozenset[str]
    #: All of them, and those that are written as strings.
    all: frozenset[str]


@functools.lru_cache(maxsize=4096)
def names_in(code: CodeType) -> Names:
    """The names in `code`."""
    loaded = {i.argval for i in dis.get_instructions(code) if i.opname in _LOADS}
    used = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = names_in(constant)
            loaded |= inner.of_globals
            used |= inner.all
        elif isinstance(constant, str) and constant.isidentifier():
            used.add(constant)
    return Names(frozenset(loaded), frozenset(used))


_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")


class Reach:
    """What `function` can reach; `names` may tell of names that its code has, to save a walk."""

    def __init__(self, function: Any, names: frozenset[str] = frozenset()) -> None:
        while True:
            walk = _Walk(names)
            walk.begin(function)
            if walk.names <= names:
                break
            names |= walk.names
        #: All names in code within reach.
        self.names = names
        #: Every value by a name of its own, as a user would write it, in the order met.
        self.values = walk.values
        #: All modules, and how each would be written.
        self.modules = walk.modules
        #: What stays as it is as long as nothing lies there that was not found.
        self.looks = walk.looks.finish()
        #: The identities of the containers whose items are among the values, and of objects that
        #: others may stand for that are equal.
        self.opened, self.replaceable = walk.opened, walk.replaceable


class _Walk:
    """One walk, with the names that are known to be in code within reach."""

    def __init__(self, known: frozenset[str]) -> None:
        self._known, self._is_open = known, not known.isdisjoint(_OPEN)
        self.names: set[str] = set()
        self.values: dict[str, Any] = {}
        self.modules: list[tuple[str, nn.Module]] = []
        self.looks = Looks()
        self.opened: set[int] = set()
        self.replaceable: set[int] = set()
        #: What was followed, by identity; kept, so that no other object has it.
        self._seen: dict[int, object] = {}
        #: Globals and cells that were read, by identity and name.
        self._places: set[tuple[int, str]] = set()
        self._waiting: deque[tuple[str, Any]] = deque()

    def begin(self, function: Any) -> None:
        """Follow everything from here."""
        self._follow("self" if isinstance(function, nn.Module) else "", function)
        while self._waiting:
            self._follow(*self._waiting.popleft())

    def _meet(self, name: str, value: Any) -> None:
        value = original_of(value)
        shown = self._note(name, value)
        if not isinstance(value, _ENDS):
            self._waiting.append((shown, value))

    def _note(self, name: str, value: Any) -> str:
        """Find a value, but do not follow it."""
        shown, number = name, 1
        while shown in self.values:
            number += 1
            shown = f"{name} ({number})"
        self.values[shown] = value
        return shown

    def _follow(self, name: str, value: Any) -> None:
        is_full = len(self._seen) >= MOST_FOLLOWED and not isinstance(value, _CODE)
        if id(value) in self._seen or is_full:
            return
        self._seen[id(value)] = value
        if isinstance(value, FunctionType):
            self._follow_function(name, value)
        elif isinstance(value, MethodType):
            self._meet("self", value.__self__)
            self._follow(name, value.__func__)
        elif isinstance(value, functools.partial):
            self._follow_partial(name, value)
        elif isinstance(value, nn.Module):
            self._follow_module(name, value)
        elif isinstance(value, type):
            self._follow_class(value, is_made=True)
        elif isinstance(value, ModuleType):
            if is_users(value.__name__):
                self._meet_attributes(value.__name__, value, vars(value))
        else:
            self._follow_object(name, value)

    def _follow_function(self, name: str, function: FunctionType) -> None:
        if not is_user_code(function):
            self._meet_wrapped(name, function)
            return
        names = names_in(function.__code__)
        self.names |= names.all
        self.looks.add_function(function, names.of_globals)
        own = function.__name__
        self._meet(f"the code of {own}", function.__code__)
        space = function.__globals__
        for key in sorted(names.of_globals & space.keys()):
            if self._is_new(space, key):
                self._meet(key, space[key])
        for key, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            is_class = key == "__class__"  # that of a method with `super()`; objects lead there
            if not is_class and cell_is_filled(cell) and self._is_new(cell, ""):
                self._meet(key, cell.cell_contents)
        if function.__defaults__:
            self._meet(f"{own}.__defaults__", function.__defaults__)
        if function.__kwdefaults__:
            self._meet(f"{own}.__kwdefaults__", function.__kwdefaults__)
        if vars(function):
            self._meet_attributes(own, function, vars(function))

    def _is_new(self, place: object, name: str) -> bool:
        key = id(place), name
        is_new = key not in self._places
        self._places.add(key)
        return is_new

    def _follow_partial(self, name: str, bound: functools.partial[Any]) -> None:
        self.looks.add_partial(bound)
        for number, value in enumerate(bound.args):
            self._meet(f"partial[{number}]", value)
        for key, value in bound.keywords.items():
            self._meet(key, value)
        self._meet(f"{name}.func", bound.func)

    def _follow_module(self, name: str, root: nn.Module) -> None:
        self._seen.pop(id(root), None)
        for path, module in root.named_modules(prefix=name):
            if id(module) in self._seen:
                continue
            self._seen[id(module)] = module
            self.modules.append((path, module))
            self._follow_attributes(path, module)
            self._follow_class(type(module))
            hooks = *module._forward_pre_hooks.values(), *module._forward_hooks.values()
            for number, hook in enumerate(hooks):
                self._meet(f"the hooks of {path}[{number}]", hook)

    def _follow_attributes(self, path: str, module: nn.Module) -> None:
        """What a module has of its own, as far as code names it; where library code works on it,
        plain values too. Tensors are looked up at every call.
        """
        own = {key: value for key, value in vars(module).items() if key not in TORCH_OWN}
        kinds = _PLAIN if _is_of_library(type(module)) else ()
        found = [key for key, value in own.items() if self._is_found(key, value, kinds)]
        self.looks.add_module(module, found, own.keys() - set(found))
        for key in found:
            shown, value = f"{path}.{key}", own[key]
            if self._names(key):
                self._meet(shown, value)
                continue
            self._note(shown, value)
            if isinstance(value, CONTAINERS):
                self._open(shown, value, self._note)

    def _open(self, name: str, container: Any, take: Callable[[str, Any], object]) -> None:
        self.opened.add(id(container))
        self.looks.add_container(container)
        for index, item in _items(container):
            take(f"{name}[{index}]", item)

    def _is_found(self, key: str, value: Any, kinds: tuple[type, ...]) -> bool:
        if isinstance(value, torch.Tensor) or key.startswith(_OURS):
            return False
        return self._names(key) or isinstance(value, kinds)

    def _names(self, key: str) -> bool:
        return self._is_open or key in self._known or key == "forward"

    def _follow_class(self, cls: type, *, is_made: bool = False) -> None:
        """What instances find in a class; where the code makes them, with what makes them."""
        for kind in cls.__mro__:
            key = "made" if is_made else "used"
            if not is_users(kind.__module__) or not self._is_new(kind, key):
                continue
            space = vars(kind)
            used = [key for key in space if self._is_used(key, space[key], is_made=is_made)]
            self.looks.add_class(kind, used)
            for key in used:
                self._meet(f"{kind.__qualname__}.{key}", _plain(space[key]))

    def _is_used(self, key: str, value: object, *, is_made: bool) -> bool:
        if key.startswith("__") and key.endswith("__"):
            return isinstance(value, FunctionType) and (is_made or key not in _ASIDE)
        return self._names(key)

    def _meet_attributes(self, name: str, owner: Any, space: dict[str, Any]) -> None:
        """The attributes of an object that code names."""
        used = [key for key in space if self._names(key) and not key.startswith(_OURS)]
        self.looks.add_attributes(owner, used, self._may_get(type(owner)) - space.keys())
        for key in used:
            self._meet(f"{name}.{key}", space[key])

    def _may_get(self, cls: type) -> set[str]:
        """Names that would change what code finds, if an object of the class got them."""
        if not self._known.isdisjoint(_ASKING):
            return set(self._known)
        kinds = [kind for kind in cls.__mro__ if is_users(kind.__module__)]
        return {key for kind in kinds for key in vars(kind) if self._names(key)}

    def _meet_wrapped(self, name: str, wrapper: Any) -> None:
        """What `functools.wraps` has noted."""
        space = getattr(wrapper, "__dict__", None)
        if isinstance(space, dict) and "__wrapped__" in space:
            if not is_opaque(type(wrapper)):
                self.looks.add_attributes(wrapper, ["__wrapped__"])
            self._meet(f"{name}.__wrapped__", space["__wrapped__"])

    def _follow_object(self, name: str, value: Any) -> None:
        """A container, an object with attributes, or both."""
        if isinstance(value, CONTAINERS):
            self._open(name, value, self._meet if len(value) <= MOST_ITEMS else self._note)
        self._meet_wrapped(name, value)
        if is_opaque(type(value)):
            return
        self._follow_class(type(value))
        if _is_like_its_equals(type(value)):
            self.replaceable.add(id(value))
        if isinstance(getattr(value, "__dict__", None), dict):
            self._meet_attributes(name, value, value.__dict__)
        slots = [key for key in _slots(type(value)) if self._names(key)]
        self.looks.add_slots(value, slots)
        for key in slots:
            if hasattr(value, key):
                self._meet(f"{name}.{key}", getattr(value, key))


def _is_of_library(cls: type) -> bool:
    """Whether code of a library, which is not looked into, works on modules of a class."""
    return any(is_opaque(kind) for kind in cls.__mro__ if kind is not nn.Module)


def _is_like_its_equals(cls: type) -> bool:
    """Whether objects of a class say which are equal, as dataclasses do, and all that they have
    lies where it can be looked at.
    """
    roots = [kind for kind in cls.__mro__ if kind.__bases__ == (object,)]
    is_open = all({"__dict__", "__slots__"} & vars(kind).keys() for kind in roots)
    return is_open and any("__eq__" in vars(kind) for kind in cls.__mro__[:-1])


def _items(container: Any) -> Iterator[tuple[str, Any]]:
    """What lies in a container, and the index of each item as text."""
    if isinstance(container, dict):
        return ((repr(key), item) for key, item in dict.items(container))
    return ((str(number), item) for number, item in enumerate(container))


def _plain(attribute: Any) -> Any:
    """The function behind an attribute of a class."""
    if isinstance(attribute, staticmethod | classmethod):
        return attribute.__func__
    if isinstance(attribute, functools.cached_property):
        return attribute.func
    return attribute.fget if isinstance(attribute, property) else attribute


def _slots(cls: type) -> Iterator[str]:
    for kind in cls.__mro__:
        if is_users(kind.__module__):
            names = vars(kind).get("__slots__", ())
            yield from (names,) if isinstance(names, str) else names


def global_names(code: CodeType) -> Iterator[str]:
    """Names that the code, and code nested in it, may look up as globals."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from global_names(constant)
