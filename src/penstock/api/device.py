"""Placement: what is traced inside `with ps.device(...)` runs on that device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from penstock.calls.structure import flatten, unflatten
from penstock.calls.torch_names import name_of
from penstock.capture.active import state
from penstock.ir.devices import read_device


class device:
    """Run the torch calls made inside on a device.

    It equals the same code without it: only where the work is done changes. In plain Python, and
    under `set_eager`, ranks and numbers of CPU queues mean nothing; what the calls take is moved to
    the memory of the device.

    Arguments:
        name: `"cpu:1"` or `"cuda:0"`, a queue with launches of its own; `"rank:1"`, a process;
            `"rank:1/cuda:0"`, a queue of a process. Inside another `device`, what the name leaves
            open is as the outer one says.

    Gradients flow as without it, and are computed on the same devices.

    >>> import penstock as ps
    >>> @ps.function
    ... def two_stages(x):
    ...     with ps.device("cpu:0"):
    ...         x = torch.sin(x)
    ...     with ps.device("cpu:1"):
    ...         return torch.cos(x)
    >>> two_stages(torch.zeros(2))
    tensor([1., 1.])
    """

    def __init__(self, name: str) -> None:
        self._device = read_device(name)
        #: One for each time that it is entered.
        self._entered: list[ExitStack] = []

    def __enter__(self) -> None:
        around = state.device
        state.device = here = self._device.inside(around)
        stack = ExitStack()
        stack.callback(setattr, state, "device", around)
        if here.name is not None and (here.kind != "cpu" or torch.cuda.is_available()):
            memory = torch.device("cpu" if here.kind == "cpu" else here.name)
            stack.enter_context(memory)
            stack.enter_context(_Moving(memory))
        self._entered.append(stack)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entered.pop().close()


#: Calls that ask about a tensor, or say themselves where their result goes.
_LEFT_ALONE = frozenset(
    [
        "__get__",
        "__set__",
        "to",
        "cpu",
        "cuda",
        "item",
        "tolist",
        "dim",
        "size",
        "is_floating_point",
    ]
)


class _Moving(TorchFunctionMode):
    """Brings the tensors that a torch call takes to one device.

    Numbers and whole tables stay where they are unless they meet values: they steer a program.
    """

    def __init__(self, memory: torch.device) -> None:
        super().__init__()
        self._memory = memory

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if name_of(func).rsplit(".", 1)[-1] in _LEFT_ALONE:
            return func(*args, **(kwargs or {}))
        leaves, structure = flatten((tuple(args), dict(kwargs or {})))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()]
        if any(leaf.is_floating_point() or leaf.is_complex() for leaf in tensors):
            args, kwargs = unflatten(structure, list(map(self._moved, leaves)))
        return func(*args, **(kwargs or {}))

    def _moved(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.device != self._memory:
            # what comes to the host is read there at once, by whoever does not ask for the stream
            return leaf.to(self._memory, non_blocking=self._memory.type != "cpu")
        return leaf
