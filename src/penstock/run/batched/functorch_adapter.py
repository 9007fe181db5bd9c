"""The one place that touches torch's tracing and vmap internals: make_fx, fake tensors, rules.

Everything is traced with fake tensors at concrete sizes, never with symbolic ones: vmap's rules
read concrete sizes and would fix the batch size silently. Traced graphs are functional: code that
works in place is functionalised. Tensors that a function closes over are kept by reference as
constants of the graph.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

#: Operations that torch's own batching rules apply in place to tensors they have just made.
_HARMLESS_IN_PLACE = frozenset({"aten::squeeze_"})

TensorFunction = Callable[..., tuple[torch.Tensor, ...]]
Shape = tuple[Sequence[int], torch.dtype, str]


def fake_mode() -> FakeTensorMode:
    """A mode in which tensors have sizes but no contents."""
    return FakeTensorMode(allow_non_fake_inputs=True)


@contextmanager
def quiet_fakes() -> Iterator[None]:
    """Keep torch from logging the failures of fake tensors, which surface as exceptions."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


#: Held while anybody traces: torch patches `nn.Module` for the whole process meanwhile, and modes
#: of fake tensors serve one thread at a time.
TRACING = threading.RLock()


def fake_tensors(mode: FakeTensorMode, shapes: Iterable[Shape]) -> list[torch.Tensor]:
    """One tensor without contents for each (shape, dtype, device)."""
    with TRACING, mode:
        return [torch.empty(tuple(s), dtype=t, device=d) for s, t, d in shapes]


def trace_function(
    function: TensorFunction, tensors: Sequence[torch.Tensor], mode: FakeTensorMode
) -> torch.fx.GraphModule:
    """The functional ATen graph of `function` at the sizes of these fake tensors."""
    with TRACING, _tracing_state(mode):
        graph = make_fx(function, tracing_mode="real")(*tensors)
        if changes_in_place(graph):
            # The graph and not the function: operators that torch composes escape
            # functionalisation.
            pure = torch.func.functionalize(replay(graph, {}))
            graph = make_fx(pure, tracing_mode="real")(*tensors)
    _keep_checks(graph)
    return graph


def _keep_checks(graph: torch.fx.GraphModule) -> None:
    """Let factorisations check for singular matrices themselves.

    torch does so in a step behind them that has no result, so that nobody would seem to need it.
    """
    checks = graph.graph.find_nodes(
        op="call_function", target=torch.ops.aten._linalg_check_errors.default
    )
    for node in checks:
        (code,) = node.all_input_nodes
        (factored,) = code.all_input_nodes
        factored.update_kwarg("check_errors", True)
        graph.graph.erase_node(node)


def vectorise(function: TensorFunction, is_row: Sequence[bool]) -> TensorFunction:
    """`function` for many rows at once: row arguments get a leading dimension, and so does every
    output.
    """
    dims = tuple(0 if row else None for row in is_row)
    return torch.func.vmap(function, in_dims=dims)


def replay(
    graph: torch.fx.GraphModule, substitutes: dict[Any, Callable[..., Any]]
) -> TensorFunction:
    """The function that runs a traced graph, with some operators replaced."""

    class Replay(torch.fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            return substitutes.get(target, target)(*args, **kwargs)

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(Replay(graph).run(*tensors))

    return run


def operators(graph: torch.fx.GraphModule) -> list[torch._ops.OpOverload]:
    """The operators a graph calls, once each, in order."""
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    return [t for t in dict.fromkeys(targets) if isinstance(t, torch._ops.OpOverload)]


def operator_name(operator: torch._ops.OpOverload) -> str:
    """The name without namespace and overload: `mm`."""
    return operator._schema.name.split("::")[1]


def blamed_operations(error: BaseException) -> list[str]:
    """The operator that an error of fake tensors names: one whose result needs real contents."""
    operator = getattr(error, "func", None)
    if not isinstance(operator, torch._ops.OpOverload):
        return []
    name = operator_name(operator)
    return ["item" if name == "_local_scalar_dense" else name]


def has_batching_rule(operator: torch._ops.OpOverload) -> bool:
    """Whether vmap has a rule for the operator, so that it does not loop over rows."""
    keys = ("FuncTorchBatched", "FuncTorchBatchedDecomposition", "CompositeImplicitAutograd")
    query = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(query(str(operator._name), key) for key in keys)


def is_random(operator: torch._ops.OpOverload) -> bool:
    """Whether the operator draws from a torch generator."""
    return torch.Tag.nondeterministic_seeded in operator.tags


def changes_in_place(graph: torch.fx.GraphModule) -> bool:
    """Whether some operator writes into a tensor that others may still read."""
    return any(
        op._schema.is_mutable and op._schema.name not in _HARMLESS_IN_PLACE
        for op in operators(graph)
    )


@contextmanager
def _tracing_state(mode: FakeTensorMode) -> Iterator[None]:
    """Fake tensors, attention and recurrent layers as plain products.

    Graphs are read and never run, so their Python code is not made.
    """
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_use_lazy_graph_module(True))
        stack.enter_context(_without_recurrent_kernels())
        stack.enter_context(quiet_fakes())
        stack.enter_context(_without_saved_tensor_hooks())
        stack.enter_context(mode)
        yield


@contextmanager
def _without_recurrent_kernels() -> Iterator[None]:
    """Recurrent layers step by step; the public switches also touch precision settings."""
    mkldnn, cudnn = torch._C._get_mkldnn_enabled(), torch._C._get_cudnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    torch._C._set_cudnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(mkldnn)
        torch._C._set_cudnn_enabled(cudnn)


@contextmanager
def _without_saved_tensor_hooks() -> Iterator[None]:
    """Hooks on saved tensors are meant for the caller; torch.func refuses to run under them."""
    hooks = []
    while (top := torch._C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(top)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)
