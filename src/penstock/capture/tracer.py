"""The tracer: takes values into the program, emits nodes, and hands control flow to the files that
trace it.

One tracer makes one program. Everything that user code can do while it is traced arrives here or in
`function_mode`; the result is always the same kind of object that eager code would get.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from penstock.calls.autocast import Autocast, current_autocast
from penstock.capture import branches, calls, elements, loops, sequences, transforms
from penstock.capture.active import state
from penstock.capture.bodies import Bodies
from penstock.capture.captures import Capture, Owners
from penstock.capture.constants import constant_tensor
from penstock.capture.converted.recursions import Recursions
from penstock.capture.leaves import STATIC_TYPES
from penstock.capture.location import user_line
from penstock.capture.recording import record
from penstock.capture.refusals import describe, out_of_reach
from penstock.capture.restarts import Dimensions
from penstock.capture.signatures import Callee, Signatures
from penstock.capture.source import user_source
from penstock.capture.traced_array import TracedTensorArray, new_array, unstacked
from penstock.capture.traced_tensor import Facts, TracedDimension, TracedTensor
from penstock.capture.type_rules import is_control_type
from penstock.capture.worlds import SizePair
from penstock.errors import ArgumentError, report
from penstock.ir.program import (
    Branch,
    Call,
    Captured,
    ForEach,
    Function,
    Loop,
    Node,
    Operation,
    Value,
)
from penstock.ir.types import ArrayType, TensorType, Type

#: What stands for one value of the program in user code.
Traced = TracedTensor | TracedTensorArray


class Tracer(Bodies):
    """Records one program."""

    def __init__(self, dimensions: Dimensions) -> None:
        super().__init__()
        #: Which input dimensions are dynamic, and which must not become so.
        self.dimensions = dimensions
        self.owners = Owners()
        #: What the program reads by reference, in the order met; numbers by identity of the tensor.
        self.captures: list[Capture] = []
        self._capture_numbers: dict[int, int] = {}
        #: Finished functions, by name.
        self.functions: dict[str, Function] = {}
        self.signatures = Signatures()
        #: The mode that sends torch functions here; set by whoever starts the trace.
        self.mode: Any = None
        #: The last TypeError raised inside a torch function.
        self.swallowed: TypeError | None = None
        #: The state of autocast around the call, which is the same at every later call.
        self._autocast = current_autocast()
        #: Whether operators that reach traced tensors are recorded: `torch.func` is at work.
        self.records_operators = False
        #: How many loops are being tried only to find the types of what they carry.
        self.trials = 0
        #: The converted functions at work, to find those that call themselves.
        self.recursions = Recursions()
        #: The text and message of each assertion on traced values, by its line.
        self.assertions: dict[str, Any] = {}

    def unswallowed(self, error: Exception) -> Exception:
        """The error behind `error`: torch's operators turn any TypeError into one of their own."""
        is_swallowed = type(error) is TypeError and "unsupported operand" in str(error)
        return self.swallowed if is_swallowed and self.swallowed is not None else error

    def operator(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a transform of `torch.func` gets for one of its operators."""
        return transforms.record_operator(self, operator, args, kwargs)

    def changed_autocast(self) -> Autocast:
        """The state of autocast here, if the program itself has changed it; else nothing."""
        here = current_autocast()
        return () if here == self._autocast else here

    def body_input(self, type_: Type, **facts: Any) -> Traced:
        """A new input of the current body."""
        value = self.new_value(type_)
        self.scope.inputs.append(value)
        if isinstance(type_, ArrayType):
            return TracedTensorArray(self, value, self.scope, facts.get("length"))
        facts.pop("length", None)
        return self.wrap(value, is_input=True, **facts)

    def read(self, traced: Traced) -> Value:
        """The value behind `traced`, which must be visible from the current body."""
        facts = traced.traced if isinstance(traced, TracedTensor) else traced
        if not self.scope.sees(facts.scope):
            raise out_of_reach(traced, facts.scope.function is not self.scope.function)
        return facts.value

    def emit(
        self, operation: Operation, inputs: Sequence[Traced], types: Sequence[Type]
    ) -> tuple[Value, ...]:
        """Add a node to the current body."""
        outputs = tuple(self.new_value(type_) for type_ in types)
        opens_scope = isinstance(operation, Branch | Loop | Call | ForEach)
        node = Node(
            operation,
            tuple(self.read(traced) for traced in inputs),
            outputs,
            user_source(),
            self.scope.next_site() if opens_scope else (),
            state.device,
        )
        self.scope.nodes.append(node)
        return outputs

    def tensor(self, value: Any) -> TracedTensor:
        """`value` as a traced tensor; a real one is captured, a number is a constant."""
        if isinstance(value, TracedTensor):
            self.read(value)
            return value
        if isinstance(value, TracedDimension):
            self.dimensions.require_dynamic(value.origins)
        if isinstance(value, torch.Tensor):
            transforms.refuse_wrapped(value)
            return self._captured(value)
        if isinstance(value, bool | int | float):
            with torch._C.DisableTorchFunction():
                made = torch.tensor(value)
            return constant_tensor(self, made)
        raise ArgumentError(
            report(
                "A tensor or a number was expected.",
                where=user_line(),
                facts=[("value", describe(value)), ("expected", "a tensor or a Python number")],
                todo="Convert it with torch.tensor first.",
            )
        )

    def leaf(self, value: Any) -> Any:
        """A leaf as it enters the program: traced, or static and unchanged."""
        if isinstance(value, TracedTensorArray):
            self.read(value)
            return value
        return value if isinstance(value, STATIC_TYPES) else self.tensor(value)

    def integer(self, value: Any, what: str) -> TracedTensor:
        """`value` as a traced whole number."""
        traced = self.tensor(value)
        type_ = traced.traced.value.type
        assert isinstance(type_, TensorType)
        if is_control_type(type_):
            return traced
        if all(size == 1 for size in type_.shape) and is_control_type(TensorType(type_.dtype)):
            scalar: TracedTensor = record(self, torch.Tensor.reshape, (traced, ()), {})
            return scalar
        raise ArgumentError(
            report(
                f"{what} must be one whole number.",
                where=user_line(),
                facts=[("value", str(type_)), ("expected", "an int or int64[]")],
                todo="Convert it first, e.g. with .to(torch.int64).",
            )
        )

    def _captured(self, tensor: torch.Tensor, capture: Capture | None = None) -> TracedTensor:
        number = self._capture_numbers.get(id(tensor))
        if number is None:
            number = len(self.captures)
            self._capture_numbers[id(tensor)] = number
            self.captures.append(capture or self.owners.capture(tensor, number))
        known = self.scope.function.captured.get(number)
        return known if known is not None else self._capture_node(tensor, number)

    def _capture_node(self, tensor: torch.Tensor, number: int) -> TracedTensor:
        with torch._C.DisableTorchFunction():
            fakes = self.worlds.fakes_like(tensor)
        value = self.new_value(self.worlds.type_of(fakes))
        function = self.scope.function
        function.prologue.append(Node(Captured(number), (), (value,), user_source()))
        facts = Facts(value, fakes, self.scope.root, is_uniform=True, is_input=True)
        facts.origins = (frozenset(),) * fakes[0].dim()
        function.captured[number] = TracedTensor(facts)
        return function.captured[number]

    def bind_shared(self, tensor: torch.Tensor, position: int, name: str) -> None:
        """Make a tensor that is given anew at each call known as a capture."""
        self._captured(tensor, Capture(name, tensor, shared=position))

    def sequence(self, value: Any, what: str) -> TracedTensor:
        """`value` with elements that have slots."""
        return elements.as_sequence(self, value, what)

    def length_of(self, value: Any) -> SizePair | None:
        """The length of a tensor or array in both worlds."""
        return elements.length_pair(self, value)

    def tensor_array(self, size: Any, dynamic_size: bool = False, like: Any = None) -> Any:
        """`ps.TensorArray(...)`."""
        return new_array(self, size, dynamic_size, like)

    def unstack(self, tensor: Any) -> Any:
        """`ps.TensorArray.unstack(tensor)`."""
        return unstacked(self, tensor)

    def cond(self, pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
        """`ps.cond`."""
        return branches.trace_cond(self, pred, true_fn, false_fn, operands)

    def switch(self, index: Any, functions: Sequence[Any], operands: Any = ()) -> Any:
        """`ps.switch`."""
        return branches.trace_switch(self, index, functions, operands)

    def while_loop(
        self,
        cond_fn: Any,
        body_fn: Any,
        carried_inputs: Any,
        maximum_iterations: Any = None,
        parallel_iterations: int | None = None,
    ) -> Any:
        """`ps.while_loop`."""
        return loops.trace_while_loop(
            self, cond_fn, body_fn, carried_inputs, maximum_iterations, parallel_iterations
        )

    def scan(self, combine_fn: Any, init: Any, xs: Any, reverse: bool = False) -> Any:
        """`ps.scan`."""
        return sequences.trace_scan(self, combine_fn, init, xs, reverse)

    def foldl(self, fn: Any, xs: Any, init: Any) -> Any:
        """`ps.foldl`."""
        return sequences.trace_fold(self, fn, xs, init, "foldl")

    def foldr(self, fn: Any, xs: Any, init: Any) -> Any:
        """`ps.foldr`."""
        return sequences.trace_fold(self, fn, xs, init, "foldr")

    def map_fn(self, fn: Any, xs: Any) -> Any:
        """`ps.map_fn`."""
        return sequences.trace_map(self, fn, xs)

    def call(self, callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a `ps.function`."""
        return calls.trace_call(self, callee, args, kwargs)
