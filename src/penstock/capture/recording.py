"""One torch call becomes one node: its template of arguments, and the types of its results found
with fake tensors.

Tensors in the arguments become operands. A traced integer in the place of a size, or as the bound
of a slice, becomes a size operand. Anything else stays in the template as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)

from penstock.calls.own_functions import follow
from penstock.calls.replay import fill
from penstock.calls.slices import INDEXING
from penstock.calls.structure import flatten, unflatten
from penstock.calls.torch_names import name_of
from penstock.capture.own_gradients import refuse_custom_function
from penstock.capture.refusals import data_dependent_shape, refuse_frequencies, value_needed
from penstock.capture.size_cuts import refuse_fixed_cut
from penstock.capture.size_rules import (
    control_facts,
    is_size_call,
    must_fit,
    result_origins,
)
from penstock.capture.traced_cuts import cut_index, find_cuts, long_enough
from penstock.capture.traced_tensor import Facts, Origins, TracedTensor, plain_size
from penstock.capture.value_numbers import representative
from penstock.capture.worlds import Fakes, SizePair
from penstock.ir.program import Operand, TorchCall
from penstock.ir.types import TensorType

if TYPE_CHECKING:
    from penstock.capture.tracer import Tracer


class Template:
    """The arguments of one call with operands in the place of tensors."""

    def __init__(self, tracer: Tracer, name: str, args: tuple[Any, ...], kwargs: Any) -> None:
        self._tracer = tracer
        self._takes_sizes = is_size_call(name)
        self._must_fit = must_fit(name)
        self._is_index = name in INDEXING
        self.operands: list[TracedTensor] = []
        self.sizes: set[int] = set()
        #: Operands that select one element by position, and so have no shape of their own.
        self._positions: set[int] = set()
        self.args = tuple(self._freeze(item, number) for number, item in enumerate(args))
        self.kwargs = tuple((key, self._freeze(item, 1)) for key, item in kwargs.items())
        #: The slices with traced bounds.
        self.cuts = find_cuts(tracer, self.args[1], self.operands) if self._is_index else []

    def call(self, name: str) -> TorchCall:
        """The operation of the node."""
        return TorchCall(
            name, self.args, self.kwargs, frozenset(self.sizes), self._tracer.changed_autocast()
        )

    def arguments(self, world: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with the fakes of one world; 2 and 3 are the worlds of expected sizes."""
        operands = [self._in_world(number, world) for number in range(len(self.operands))]
        template = self.args
        if self.cuts:
            symbols = [self._tracer.worlds.sizes[cut.symbol] for cut in self.cuts]
            sizes = [self._pair_in(pair, world) for pair in symbols]
            operands[0] = long_enough(operands[0], self.cuts, sizes)
            template = (template[0], cut_index(template[1], self.cuts, sizes), *template[2:])
        args: tuple[Any, ...] = fill(template, operands)
        return args, {key: fill(item, operands) for key, item in self.kwargs}

    @property
    def is_dynamic(self) -> bool:
        """Whether the worlds differ."""
        return bool(self.cuts) or any(
            self._in_world(number, 0) is not self._in_world(number, 1)
            for number in range(len(self.operands))
        )

    @property
    def has_expected(self) -> bool:
        """Whether an operand or slice has an expected size."""
        worlds = self._tracer.worlds
        symbols = {cut.symbol for cut in self.cuts}
        for facts in (operand.traced for operand in self.operands):
            symbols.update(size for size in facts.value.type.shape if isinstance(size, str))  # type: ignore[union-attr]
            if facts.hint is not None:
                symbols.add(str(worlds.symbol(facts.hint)))
        return not worlds.expected.keys().isdisjoint(symbols)

    @property
    def origins(self) -> Origins:
        """The input dimensions that static sizes of the operands came from."""
        origins = [operand.traced.origins for operand in self.operands]
        return frozenset().union(*(places for sizes in origins for places in sizes))

    def can_expect(self, results: tuple[Any, Any]) -> bool:
        """Whether static sizes of results are those of operands, and not only expected."""
        types = [operand.traced.value.type for operand in self.operands]
        static = {1, *(size for type_ in types for size in type_.shape)}  # type: ignore[union-attr]
        first, second = (flatten(result)[0] for result in results)
        return all(
            one != other or one in static
            for left, right in zip(first, second, strict=True)
            if isinstance(left, torch.Tensor)
            for one, other in zip(left.shape, right.shape, strict=True)
        )

    def result(self, name: str, fakes: Fakes) -> Fakes:
        """What the call gives, as far as it was tried on other tensors than its own."""
        if self.cuts and name == "penstock.set_item":
            return self.operands[0].traced.fakes
        return fakes

    def _pair_in(self, pair: SizePair, world: int) -> int:
        return pair[world] if world < 2 else self._tracer.worlds.expected_pair(pair)[world - 2]

    def _freeze(self, item: Any, position: int) -> Any:
        if isinstance(item, torch.Tensor):
            return self._operand(item, position)
        if isinstance(item, tuple | list):
            return tuple(self._freeze(part, position) for part in item)
        if isinstance(item, slice):
            return slice(*(self._bound(part) for part in (item.start, item.stop, item.step)))
        return plain_size(item)

    def _operand(self, item: torch.Tensor, position: int, is_size: bool = False) -> Operand:
        traced = self._tracer.tensor(item)
        type_ = traced.traced.value.type
        assert isinstance(type_, TensorType)
        is_whole = type_.is_scalar and type_.dtype in ("int64", "int32", "int16", "int8")
        # the first argument of a method is the tensor itself, never a size
        is_self = position == 0 and not self.operands and self._takes_sizes == "after first"
        is_size = is_size or (is_whole and bool(self._takes_sizes) and not is_self)
        for number, known in enumerate(self.operands):
            if known is traced and (number in self.sizes) == is_size:
                return Operand(number)
        number = len(self.operands)
        self.operands.append(traced)
        if is_size:
            self.sizes.add(number)
            if traced.traced.hint is None:
                value = representative(self._tracer, traced.traced.value)
                traced.traced.hint = self._tracer.worlds.hint(value, is_small=self._must_fit)
        elif self._is_index and position == 1 and is_whole:
            self._positions.add(number)
        return Operand(number)

    def _bound(self, item: Any) -> Any:
        return (
            self._operand(item, 1, is_size=True)
            if isinstance(item, torch.Tensor)
            else plain_size(item)
        )

    def _in_world(self, number: int, world: int) -> Any:
        facts = self.operands[number].traced
        if number in self.sizes:
            assert facts.hint is not None
            return self._pair_in(facts.hint, world)
        if number in self._positions:
            return 0
        return facts.fakes[world] if world < 2 else self._expected_fake(facts, world)

    def _expected_fake(self, facts: Facts, world: int) -> torch.Tensor:
        worlds = self._tracer.worlds
        type_ = facts.value.type
        assert isinstance(type_, TensorType)
        sizes = [self._pair_in(worlds.pair(size), world) for size in type_.shape]
        fake = facts.fakes[world - 2]
        return fake if tuple(fake.shape) == tuple(sizes) else worlds.empty(type_, sizes)


def record(tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
    """Add the call to the program and return what user code gets for it."""
    return record_named(tracer, name_of(function), function, args, kwargs)


def record_named(
    tracer: Tracer, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
) -> Any:
    """`record` for a function that the program calls by `name`."""
    if name not in _MOVES:
        args, kwargs = follow_device(tracer, args, kwargs)
    template = Template(tracer, name, args, kwargs)
    refuse_fixed_cut(name, template)
    refuse_frequencies(name, args, kwargs)
    first, second = _tried(tracer, name, function, template)
    leaves, structure = flatten(first)
    others, _ = flatten(second)
    if len(leaves) != len(others):
        raise value_needed("__iter__", template.operands[0])
    pairs = list(zip(leaves, others, strict=True))
    numbers = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if not numbers:
        return _same_result(name, first, second)
    fakes = [template.result(name, pairs[i]) for i in numbers]
    outputs = _emit(tracer, template, template.call(name), fakes)
    for number, output in zip(numbers, outputs, strict=True):
        leaves[number] = output
    return unflatten(structure, leaves)


def _tried(
    tracer: Tracer, name: str, function: Callable[..., Any], template: Template
) -> tuple[Any, Any]:
    """What the call gives in both worlds; in those of expected sizes where the others clash."""

    def run(world: int) -> Any:
        return _run(tracer, name, function, template, world)

    try:
        first = run(0)
        found = first, run(1) if template.is_dynamic else first
    except RuntimeError:
        if template.is_dynamic and tracer.worlds.has_cuts:
            # the size of a slice may be that of an input, once that is dynamic too
            tracer.dimensions.require_dynamic(template.origins)
        if not template.has_expected:
            raise
        expected = run(2), run(3)
        if not template.can_expect(expected):
            raise
        return expected
    if not template.has_expected:
        return found
    try:
        expected = run(2), run(3)
    except RuntimeError:
        return found
    _note_expected(tracer, found, expected)
    return found


def _note_expected(tracer: Tracer, found: Any, expected: Any) -> None:
    """Note the expected sizes of results, dimension by dimension."""
    worlds = [flatten(result)[0] for result in (*found, *expected)]
    for leaves in zip(*worlds):
        if isinstance(leaves[0], torch.Tensor):
            for sizes in zip(*(leaf.shape for leaf in leaves)):
                tracer.worlds.expect((sizes[0], sizes[1]), (sizes[2], sizes[3]))


#: Calls that say themselves where their result goes.
_MOVES = ("torch.Tensor.to", "torch.Tensor.cpu", "torch.Tensor.cuda", "penstock.follow")


def follow_device(tracer: Tracer, args: tuple[Any, ...], kwargs: Any) -> tuple[Any, Any]:
    """The arguments, with whole numbers and 0-d tensors on the host moved to what they meet.

    Structure stays on the host; what of it is data (tokens, keys) follows its consumers.
    """
    leaves, structure = flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    away = next((tensor for tensor in tensors if _device_of(tensor).type != "cpu"), None)
    if away is None or all(_device_of(tensor).type != "cpu" for tensor in tensors):
        return args, kwargs
    moved = [
        _moved(tracer, leaf, away) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
    ]
    found: tuple[Any, Any] = unflatten(structure, moved)
    return found


def _device_of(tensor: torch.Tensor) -> torch.device:
    return tensor.traced.fakes[0].device if isinstance(tensor, TracedTensor) else tensor.device


def _moved(tracer: Tracer, tensor: torch.Tensor, like: torch.Tensor) -> Any:
    traced = tracer.tensor(tensor)
    fake = traced.traced.fakes[0]
    is_whole = not (fake.dtype.is_floating_point or fake.dtype.is_complex)
    if fake.device.type != "cpu" or not (is_whole or fake.dim() == 0):
        return tensor
    return record_named(tracer, "penstock.follow", follow, (traced, like), {})


def record_as(
    tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...], type_: TensorType
) -> TracedTensor:
    """Record a call whose one result is known to have the type `type_`."""
    name = name_of(function)
    template = Template(tracer, name, args, {})
    return _emit(tracer, template, template.call(name), [tracer.worlds.fakes(type_)])[0]


def _emit(
    tracer: Tracer, template: Template, operation: TorchCall, fakes: list[Fakes]
) -> list[TracedTensor]:
    fakes = [_settled(pair) for pair in fakes]
    types = [tracer.worlds.type_of(pair) for pair in fakes]
    values = tracer.emit(operation, template.operands, types)
    facts = [operand.traced for operand in template.operands]
    common = control_facts(operation, facts, types)
    common["is_uniform"] = all(fact.is_uniform for fact in facts)
    outputs = []
    for value, pair, type_ in zip(values, fakes, types, strict=True):
        origins = result_origins(type_, facts)
        outputs.append(tracer.wrap(value, pair, origins=origins, **common))
    return outputs if torch.is_grad_enabled() else [_detached(tracer, item) for item in outputs]


def _detached(tracer: Tracer, output: TracedTensor) -> TracedTensor:
    """What a call gives inside `torch.no_grad()`."""
    refuse_custom_function()
    if not output.traced.fakes[0].dtype.is_floating_point:
        return output
    with torch.enable_grad():
        detached: TracedTensor = record(tracer, torch.Tensor.detach, (output,), {})
    return detached


def _run(
    tracer: Tracer, name: str, function: Callable[..., Any], template: Template, world: int
) -> Any:
    try:
        with torch._C.DisableTorchFunction(), torch.no_grad(), tracer.worlds.mode:
            args, kwargs = template.arguments(world)
            return function(*args, **kwargs)
    except (DataDependentOutputException, DynamicOutputShapeException):
        raise data_dependent_shape(name) from None


def _settled(pair: Fakes) -> Fakes:
    """The pair as one tensor twice where the worlds agree."""
    first, second = pair
    return (first, first) if first.shape == second.shape else pair


def _same_result(name: str, first: Any, second: Any) -> Any:
    if first != second:
        raise data_dependent_shape(name)
    return first
