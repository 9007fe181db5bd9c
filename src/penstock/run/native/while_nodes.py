"""A loop as one CUDA graph with a WHILE node: the adapter to the driver's own functions.

torch captures its kernels on a stream; here the stream is told to capture into the body of a WHILE
node, which runs again as long as a small kernel finds a flag set. What is allocated meanwhile comes
from a pool of its own, which lives as long as the graph. Needs `cuda.bindings` 13 and a driver that
knows such nodes.
"""

from __future__ import annotations

import ctypes
import importlib.util
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch

#: Sets the condition of a WHILE node: whether rows go on, and the host has not asked to end, at
#: whose memory it looks once in a while.
_SOURCE = b"""
typedef unsigned long long Condition;
extern "C" __device__ __cudart_builtin__ void cudaGraphSetConditional(Condition, unsigned int);
extern "C" __global__ void ask(
    Condition condition, const bool *goes_on, volatile long long *stop, long long *asked)
{
    bool is_ended = (++*asked & 255) == 0 && *stop != 0;
    cudaGraphSetConditional(condition, *goes_on && !is_ended);
}
"""


def has_while_nodes() -> bool:
    """Whether the driver's functions can be called."""
    try:
        return importlib.util.find_spec("cuda.bindings.nvrtc") is not None
    except ModuleNotFoundError:
        return False


#: Does its work, and gives one bool on the device: whether the loop goes on.
Part = Callable[[], torch.Tensor]


class WhileGraph:
    """`head()`, then `body()` as long as the last has given true; both work on fixed memory.

    `words` is memory that host and device share, by whose first number the host ends the loop.
    """

    def __init__(self, head: Part, body: Part, device: torch.device, words: torch.Tensor) -> None:
        self.device = device
        self._words = (words, torch.zeros((), dtype=torch.int64, device=device))
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.device(device):
            self._pool = torch.cuda.MemPool()
            self._exec = self._made(head, body)
        weakref.finalize(self, _checked, "cuGraphExecDestroy", self._exec).atexit = False
        torch.cuda.current_stream(device).wait_stream(self._stream)

    def _made(self, head: Part, body: Part) -> Any:
        self._graph = _checked("cuGraphCreate", 0)
        try:
            self._capture(head, body)
            return _checked("cuGraphInstantiate", self._graph, 0)
        finally:
            _checked("cuGraphDestroy", self._graph)

    def _capture(self, head: Part, body: Part) -> None:
        driver, _ = _modules()
        context = _checked("cuCtxGetCurrent")
        condition = _checked("cuGraphConditionalHandleCreate", self._graph, context, 0, 0)
        with self._apart():
            head()
            body()  # what is done only once, such as making a handle, is done
        with self._apart(), self._capturing(self._graph):
            self._ask(condition, head())
            _, _, _, before, *_, count = _checked("cuStreamGetCaptureInfo", self._handle)
        node = driver.CUgraphNodeParams()
        node.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        node.conditional.handle = condition
        node.conditional.type = driver.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_WHILE
        node.conditional.size = 1
        node.conditional.ctx = context
        _checked("cuGraphAddNode", self._graph, before, None, count, node)
        with self._apart(), self._capturing(node.conditional.phGraph_out[0]):
            self._ask(condition, body())

    @property
    def _handle(self) -> int:
        handle: int = self._stream.cuda_stream
        return handle

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """On the stream and in the pool of the graph."""
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream), torch.cuda.use_mem_pool(self._pool, self.device):
            yield

    @contextmanager
    def _capturing(self, graph: Any) -> Iterator[None]:
        """What is launched goes into a graph."""
        mode = _modules()[0].CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        _checked("cuStreamBeginCaptureToGraph", self._handle, graph, None, None, 0, mode)
        try:
            yield
        finally:
            _checked("cuStreamEndCapture", self._handle)

    def _ask(self, condition: Any, flag: torch.Tensor) -> None:
        values = (int(condition), *(tensor.data_ptr() for tensor in (flag, *self._words)))
        types = (ctypes.c_uint64, *[ctypes.c_void_p] * 3)
        function, sizes = _kernel(self.device), (1, 1, 1, 1, 1, 1, 0)
        _checked("cuLaunchKernel", function, *sizes, self._handle, (values, types), 0)

    def launch(self) -> None:
        """Run it on the current stream."""
        stream = torch.cuda.current_stream(self.device).cuda_stream
        _checked("cuGraphLaunch", self._exec, stream)


def _modules() -> tuple[Any, Any]:
    return tuple(import_module(f"cuda.bindings.{name}") for name in ("driver", "nvrtc"))  # type: ignore[return-value]


def _checked(name: str, *arguments: Any) -> Any:
    """Call a function of the driver, or of the compiler; raise what it reports."""
    driver, nvrtc = _modules()
    module = nvrtc if name.startswith("nvrtc") else driver
    status, *results = getattr(module, name)(*arguments)
    if int(status):
        raise RuntimeError(f"{name}: {status.name}")
    return results[0] if len(results) == 1 else results


@lru_cache
def _kernel(device: torch.device) -> Any:
    """The kernel that sets a condition."""
    major, minor = torch.cuda.get_device_capability(device)
    program = _checked("nvrtcCreateProgram", _SOURCE, b"ask.cu", 0, [], [])
    options = [f"--gpu-architecture=sm_{major}{minor}".encode()]
    _checked("nvrtcCompileProgram", program, len(options), options)
    binary = b" " * _checked("nvrtcGetCUBINSize", program)
    _checked("nvrtcGetCUBIN", program, binary)
    module = _checked("cuModuleLoadData", binary)
    return _checked("cuModuleGetFunction", module, b"ask")
