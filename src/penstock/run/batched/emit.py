"""Straight-line code as Python text, and the function compiled from it.

The function takes the number of rows first, then the block's arguments. Sizes of dynamic dimensions
are read off the arguments in its first lines. A value is deleted after its last use, so that memory
is what the code needs at each line.
"""

from __future__ import annotations

import keyword
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from penstock.run.batched import products
from penstock.run.batched.functorch_adapter import operator_name
from penstock.run.batched.inputs import SymbolSource
from penstock.run.batched.lift import AsFloat, Inverse
from penstock.run.batched.sizes import ROWS, Polynomial
from penstock.run.batched.spelling import spell, spell_overload
from penstock.run.batched.steps import Step, StraightLine, read_steps

BatchFunction = Callable[..., tuple[torch.Tensor, ...]]

#: Arguments of factories that say what is the case anyway.
_DEFAULTS = {
    "layout": (None, torch.strided),
    "pin_memory": (None, False),
    "memory_format": (None, torch.contiguous_format, torch.preserve_format),
    "non_blocking": (None, False),
}


_PRODUCTS = (
    torch.ops.aten.linear.default,
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
)


@dataclass(frozen=True, slots=True)
class Emitted:
    """Python text, and the objects it names that are not torch's."""

    name: str
    source: str
    namespace: dict[str, Any]

    def compile(self, device: torch.device | None = None) -> BatchFunction:
        """The function; with `device`, every device and constant in it is on that one instead."""
        scope: dict[str, Any] = {"torch": torch, "inf": math.inf, "nan": math.nan}
        for key, value in self.namespace.items():
            scope[key] = value if device is None else _moved(value, device)
        exec(compile(self.source, f"<penstock block {self.name}>", "exec"), scope)
        function: BatchFunction = scope["block"]
        return function


def emit(
    code: StraightLine,
    *,
    name: str,
    parameters: Sequence[Step | None],
    symbols: Sequence[SymbolSource] = (),
    overloads: bool = False,
) -> Emitted:
    """Print code whose arguments are `parameters` (None for one that the code does not read)."""
    return _Printer(code, parameters, symbols, spell_overload if overloads else spell).print(name)


class _Printer:
    def __init__(
        self,
        code: StraightLine,
        parameters: Sequence[Step | None],
        symbols: Sequence[SymbolSource],
        spelling: Callable[..., str],
    ) -> None:
        self.code = code
        self.symbols = symbols
        self.spelling = spelling
        self.arguments = [f"a{position}" for position in range(len(parameters))]
        self.names = {
            step: argument
            for step, argument in zip(parameters, self.arguments, strict=True)
            if step is not None
        }
        self.namespace: dict[str, Any] = {}
        self.taken = {"torch", "inf", "nan", ROWS, *self.arguments, *(s.name for s in symbols)}

    def print(self, name: str) -> Emitted:
        lines = [f"def block({', '.join([ROWS, *self.arguments])}):"]
        lines += [self.read_symbol(symbol) for symbol in self.symbols]
        last_reads = self.last_reads()
        for step in self.code.steps:
            if step.constant is not None:
                self.names[step] = self.bind("constant", step.constant)
                continue
            self.names[step] = self.fresh(_label(step))
            lines.append(f"{self.names[step]} = {self.expression(step)}")
            if last_reads.get(step):
                lines.append(f"del {', '.join(self.names[dead] for dead in last_reads[step])}")
        lines.append(f"return {self.text(tuple(self.code.outputs))}")
        return Emitted(name, "\n    ".join(lines) + "\n", self.namespace)

    def read_symbol(self, symbol: SymbolSource) -> str:
        argument = self.arguments[symbol.argument]
        read = argument if symbol.dimension is None else f"{argument}.shape[{symbol.dimension}]"
        return f"{symbol.name} = {read}"

    def last_reads(self) -> dict[Step, list[Step]]:
        """The values that nobody reads after a step: made before it, not inputs, constants or
        outputs.
        """
        kept = {*self.code.inputs, *self.code.outputs}
        last: dict[Step, Step] = {}
        for step in self.code.steps:
            for read in read_steps((step.args, step.kwargs)):
                last[read] = step
        dead: dict[Step, list[Step]] = {}
        for read, step in last.items():
            if read not in kept and read.constant is None:
                dead.setdefault(step, []).append(read)
        return dead

    def expression(self, step: Step) -> str:
        if step.target is operator.getitem:
            return f"{self.text(step.args[0])}[{step.args[1]}]"
        if self.spelling is spell:
            special = self.special(step)
            if special is not None:
                return special
        kwargs = {
            key: self.text(value)
            for key, value in step.kwargs.items()
            if value not in _DEFAULTS.get(key, ())
        }
        return self.spelling(step.target, [self.text(a) for a in step.args], kwargs, self.bind)

    def special(self, step: Step) -> str | None:
        """The expression of a call for which there is something better than torch's function."""
        if step.target is torch.ops.aten.index.Tensor:
            subscript = self.subscript(step.args[1])
            return None if subscript is None else f"{self.text(step.args[0])}[{subscript}]"
        if step.target not in _PRODUCTS or step.kwargs or not products.has_choice(step.tensor):
            return None
        function = f"{self.bind('products', products)}.{operator_name(step.target)}"
        return f"{function}({', '.join(map(self.text, step.args))})"

    def subscript(self, indices: Sequence[Step | None]) -> str | None:
        """Indices between brackets, unless Python would read them: 0-d ones become numbers."""
        tensors = [index.tensor for index in indices if index is not None]
        if any(not fact.shape or fact.dtype == torch.bool for fact in tensors):
            return None
        return ", ".join(":" if index is None else self.text(index) for index in indices)

    def text(self, value: Any) -> str:
        """A value as Python text."""
        if isinstance(value, Step):
            return self.names[value]
        if isinstance(value, (list, tuple)):
            items = ", ".join(map(self.text, value))
            return (
                f"[{items}]" if isinstance(value, list) else f"({items}{',' * (len(value) == 1)})"
            )
        if isinstance(value, (Polynomial, Inverse, AsFloat, torch.dtype)):
            return str(value)
        if isinstance(value, (bool, int, float, str, type(None))):
            return repr(value)
        return self.bind(type(value).__name__, value)

    def bind(self, label: str, value: object) -> str:
        for name, bound in self.namespace.items():
            if bound is value or (isinstance(value, torch.device) and bound == value):
                return name
        name = self.fresh(label)
        self.namespace[name] = value
        return name

    def fresh(self, label: str) -> str:
        name, number = label, 1
        while name in self.taken or keyword.iskeyword(name):
            name, number = f"{label}_{number}", number + 1
        self.taken.add(name)
        return name


def _label(step: Step) -> str:
    if step.target is operator.getitem:
        return f"{_label(step.args[0])}_{step.args[1]}"
    name = operator_name(step.target).strip("_")
    return name if name.isidentifier() else "value"


def _moved(value: object, device: torch.device) -> object:
    if isinstance(value, torch.device):
        return device
    return value.to(device) if isinstance(value, torch.Tensor) else value
