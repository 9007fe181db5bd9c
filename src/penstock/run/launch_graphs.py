"""Functions of launches that are run again and again on a CUDA device, as CUDA graphs.

For plans that are no graph as a whole, since what they save leaves memory. A graph has memory of
its own: operands are copied in, in one launch for all of them. Results stay there until the next
replay; those that outlive it are copied out, into one piece of memory. What is the same for all
rows is read where it is. Each thread has graphs of its own, as results are read after a replay.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Hashable, Sequence
from functools import cached_property, partial
from math import prod
from typing import NamedTuple

import torch

from penstock.run.batched.emit import BatchFunction
from penstock.run.capturing import capture, is_capturing
from penstock.run.fused.setting import Fusion
from penstock.run.memory.lasting import note_lasting

log = logging.getLogger("penstock")

#: How often a function is run on operands of one kind before it is captured, and how many graphs
#: it has at most.
STREAK, MOST_GRAPHS = 8, 4


class LaunchGraphs:
    """One function of rows and tensors, as graphs for operands that are often met."""

    def __init__(self, function: BatchFunction) -> None:
        self.function = function
        self._counts: dict[Hashable, int] = {}
        #: None where it cannot be captured.
        self._graphs: dict[Hashable, LaunchGraph | None] = {}
        note_lasting(self)

    def give_back(self) -> bool:
        """Let go of all graphs; they are captured anew when they are met as often again."""
        had_some = any(graph is not None for graph in self._graphs.values())
        self._graphs, self._counts = {}, {}
        return had_some

    def find(
        self,
        rows: int,
        tensors: Sequence[torch.Tensor],
        sizes: Sequence[int],
        fixed: Collection[int],
    ) -> LaunchGraph | None:
        """The graph for operands like these, of which those at the `fixed` places are rarely
        others; None where the function is to be called. Operands on the host are those that the
        function only moves: the graph takes them on its device.
        """
        key = _key(rows, tensors, sizes)
        if key is None:
            return None
        graph = self._graphs.get(key)
        is_known = key in self._graphs
        if is_known and (graph is None or graph.is_for(tensors)):
            return graph
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count <= STREAK or len(self._graphs) >= MOST_GRAPHS + is_known:
            return None
        places = frozenset[int]() if is_known else frozenset(fixed)
        self._graphs[key] = made = self._capture(rows, tensors, sizes, places)
        return made

    def _capture(
        self,
        rows: int,
        tensors: Sequence[torch.Tensor],
        sizes: Sequence[int],
        fixed: frozenset[int],
    ) -> LaunchGraph | None:
        try:
            return LaunchGraph(self.function, rows, tensors, sizes, fixed)
        except Exception as problem:  # torch tells in many ways that a call cannot be captured
            log.info("a launch runs without a CUDA graph: %s", problem)
            return None


def _key(rows: int, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Hashable:
    """What launches of one graph have in common; None for those that have none."""
    if Fusion.mode == "never" or not tensors or is_capturing():
        return None
    device = device_of(tensors)
    stream = None if device is None else stream_of(device)
    if stream is None:
        return None
    kinds = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors]
    where = threading.get_ident(), stream, torch.get_float32_matmul_precision()
    return (rows, *sizes, *kinds, *where)


def device_of(tensors: Sequence[torch.Tensor]) -> torch.device | None:
    """The one device beside the host that tensors are on; the host, if all are there."""
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        devices = {device for device in devices if device.type != "cpu"}
    return devices.pop() if len(devices) == 1 else None


def stream_of(device: torch.device) -> int | None:
    """The stream of launches on a device that has graphs."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None


class LaunchGraph:
    """A function as a CUDA graph, with the memory that it works in."""

    def __init__(
        self,
        function: BatchFunction,
        rows: int,
        tensors: Sequence[torch.Tensor],
        sizes: Sequence[int],
        fixed: frozenset[int],
    ) -> None:
        #: Operands that are read where they are.
        self.fixed = {place: tensors[place] for place in fixed}
        self.places = [k for k in range(len(tensors)) if k not in fixed]
        device = device_of(tensors)
        assert device is not None
        operands = list(tensors)
        for place in self.places:
            operands[place] = torch.empty_like(tensors[place], device=device)
        #: The memory into which operands are copied.
        self.operands = [operands[place] for place in self.places]
        self._compute = partial(function, rows, *operands, *sizes)
        self.results: Sequence[torch.Tensor] = ()
        self.graph = capture(self.compute, device)
        lying = {_lying(operand): place for place, operand in enumerate(operands)}
        given: Sequence[torch.Tensor] = self.results
        found = {k: lying.get(_lying(each)) for k, each in enumerate(given)}
        #: Results that are operands passed on, by the place of the operand.
        self.passed = {k: place for k, place in found.items() if place is not None}

    def compute(self) -> None:
        """What is captured."""
        self.results = self._compute()

    def is_for(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the operands that it reads where they were are there."""
        return all(
            tensors[place].data_ptr() == known.data_ptr() for place, known in self.fixed.items()
        )

    def run(
        self, tensors: Sequence[torch.Tensor], upload: Callable[[torch.Tensor], torch.Tensor]
    ) -> list[torch.Tensor]:
        """The results for operands, until the next replay; `upload` brings those on the host to the
        device.
        """
        here = [tensors[place] for place in self.places]
        is_near = [values.device == own.device for values, own in zip(here, self.operands)]
        here = [each if near else upload(each) for each, near in zip(here, is_near, strict=True)]
        torch._foreach_copy_(self.operands, here)
        self.graph.replay()
        found = list(self.results)
        for k, place in self.passed.items():
            found[k] = tensors[place]
        return found

    def keep(self, found: Sequence[torch.Tensor], first: int) -> tuple[Layout, list[torch.Tensor]]:
        """All results from the first on, in memory of their own but for operands passed on: one
        flat tensor and those that are apart, and where each result is.
        """
        packed = self._packed
        layout = self._layouts.get(first)
        if layout is None:
            layout = self._layouts[first] = self._layout(first)
        chosen = [packed[k] for k in layout.packed]
        apart = [found[k] if k in self.passed else found[k].clone() for k in layout.apart]
        if not chosen:
            return layout, apart
        flat = chosen[0].new_empty(layout.size)
        torch._foreach_copy_(list(torch.split(flat, layout.sizes)), chosen)
        return layout, [flat, *apart]

    @cached_property
    def _layouts(self) -> dict[int, Layout]:
        return {}

    @cached_property
    def _packed(self) -> dict[int, torch.Tensor]:
        """Those results that can be copied out together, flat: of one type, without gaps."""
        own = [k for k in range(len(self.results)) if k not in self.passed]
        dtypes = [self.results[k].dtype for k in own]
        common = max(dtypes, key=dtypes.count, default=None)
        return {
            k: self.results[k].view(-1)
            for k in own
            if self.results[k].dtype == common and self.results[k].is_contiguous()
        }

    def _layout(self, first: int) -> Layout:
        places = range(first, len(self.results))
        packed = tuple(k for k in places if k in self._packed)
        apart = tuple(k for k in places if k not in self._packed)
        shapes = tuple(tuple(self.results[k].shape) for k in packed)
        return Layout(first, packed, apart, shapes)


class Layout(NamedTuple):
    """How results lie in one flat tensor and some that are apart: where the first of them counts
    from, which are flat, which are apart, and the shapes of the flat ones.
    """

    first: int
    packed: tuple[int, ...]
    apart: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> list[int]:
        """How many elements of the flat tensor belong to each."""
        return [prod(shape) for shape in self.shapes]

    @property
    def size(self) -> int:
        """All of them."""
        return sum(self.sizes)

    def holder(self, position: int) -> int:
        """The number of the tensor in which a result is, counted from the first result."""
        place = position + self.first
        return 0 if place in self.packed else bool(self.packed) + self.apart.index(place)

    def read(self, tensors: Sequence[torch.Tensor], position: int) -> torch.Tensor:
        """A result."""
        values, place = tensors[self.holder(position)], position + self.first
        if place not in self.packed:
            return values
        number = self.packed.index(place)
        start = sum(self.sizes[:number])
        return values[start : start + self.sizes[number]].view(self.shapes[number])

    def read_all(
        self, tensors: Sequence[torch.Tensor], positions: Sequence[int]
    ) -> list[torch.Tensor]:
        """Several results."""
        found: dict[int, torch.Tensor] = {}
        if self.packed:
            parts = torch.split(tensors[0], self.sizes)
            shaped = zip(self.packed, parts, self.shapes, strict=True)
            found = {place: part.view(shape) for place, part, shape in shaped}
        found |= dict(zip(self.apart, tensors[bool(self.packed) :], strict=True))
        return [found[position + self.first] for position in positions]


def _lying(tensor: torch.Tensor) -> Hashable:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
