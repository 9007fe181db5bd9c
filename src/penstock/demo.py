"""The main job in small: a recursive Tree-LSTM over made-up trees, one by one and batched.

The model is `penstock.nn.BinaryTreeLSTM`, written for one node of one tree. The per-sample side
recurses over Python objects, as one would without Penstock; both sides share leaf, cell and
weights. Figures here are for a first impression, in CPU time of one thread: on a busy machine
threads mostly wait for each other. Careful ones are in benchmarks/.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from penstock.data import Node, Tree, random_binary_trees
from penstock.nn import BinaryTreeLSTM
from penstock.nn.tree_lstm import State

T = TypeVar("T")

#: Trees that are run together.
BATCH = 256

#: Both ways take turns, and the best turn of each counts: something else may run on the machine.
TURNS = 3

#: Largest difference between the two ways that counts as rounding in float32.
TOLERANCE = 1e-4


class TreeLSTM(BinaryTreeLSTM):
    """`penstock.nn.BinaryTreeLSTM`, and its recursion in plain PyTorch."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int) -> None:
        super().__init__(nn.Embedding(vocabulary, embedding), hidden)

    def recurse(self, node: Node) -> State:
        """`encode` over Python objects."""
        if not node.children:
            return self.leaf(torch.tensor(node.token))
        left, right = node.children
        return self.cell(*self.recurse(left), *self.recurse(right))


def run_demo(
    *, trees: int, hidden: int, seed: int = 0, embedding: int = 300, console: Console | None = None
) -> int:
    """Run both ways, compare, print; returns 0 if they agree and 1 if they do not."""
    console = console or Console(soft_wrap=True)
    torch.manual_seed(seed)
    model = TreeLSTM(vocabulary=2000, embedding=embedding, hidden=hidden)
    forest = random_binary_trees(trees, seed=seed)
    console.print(
        f"A recursive Tree-LSTM (hidden {hidden}) over {trees:,} made-up trees, "
        f"{sum(map(len, forest)):,} nodes.\n"
        "Both ways take turns, timed in CPU seconds of one thread."
    )
    with torch.no_grad(), _one_thread():
        building = _timed(lambda: model.forward.map(forest[:2], out="stack"))
        turns = [_take_turn(model, forest, turn, console) for turn in range(TURNS)]
    slow, fast = (max(way.trees_per_second for way in ways) for ways in zip(*turns, strict=True))
    console.print(f"one by one  {slow:10,.0f} trees/s")
    console.print(f"batched     {fast:10,.0f} trees/s", end="")
    console.print(f"  (and once {building.seconds:.1f} s to trace and build the program)")
    return _conclude(console, turns, fast / slow)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _take_turn(
    model: TreeLSTM, forest: list[Tree], turn: int, console: Console
) -> tuple[Timed, Timed]:
    """A part of the trees one by one, then all batched, in batches that were never planned."""
    part = -(-len(forest) // TURNS)
    order = forest[turn * part :] + forest[: turn * part]
    shown = f"{turn + 1}/{TURNS}"
    slow = _timed(lambda: _one_by_one(model, order[:part], f"one by one {shown}", console))
    fast = _timed(lambda: _batched(model, order, f"batched {shown}", console))
    return slow, fast


class Timed(NamedTuple):
    """A result and the seconds of CPU time it took."""

    result: Tensor
    seconds: float

    @property
    def trees_per_second(self) -> float:
        """How fast it was."""
        return len(self.result) / self.seconds


def _timed(call: Callable[[], Tensor]) -> Timed:
    begin = time.process_time()
    result = call()
    return Timed(result, time.process_time() - begin)


def _one_by_one(model: TreeLSTM, forest: list[Tree], what: str, console: Console) -> Tensor:
    roots = [tree.to_nodes() for tree in forest]
    return torch.stack([model.recurse(root)[0] for root in _shown(roots, what, console)])


def _batched(model: TreeLSTM, forest: list[Tree], what: str, console: Console) -> Tensor:
    batches = [forest[first : first + BATCH] for first in range(0, len(forest), BATCH)]
    return torch.cat(
        [model.forward.map(batch, out="stack") for batch in _shown(batches, what, console)]
    )


def _conclude(console: Console, turns: list[tuple[Timed, Timed]], ratio: float) -> int:
    difference = max(
        float((slow.result - fast.result[: len(slow.result)]).abs().max()) for slow, fast in turns
    )
    if not difference <= TOLERANCE:
        console.print(f"The results DIFFER by {difference:.1e}; rounding is below {TOLERANCE:.0e}.")
        return 1
    console.print(f"The results agree (largest difference {difference:.1e}).")
    console.print(f"Batched is {ratio:.1f} times as fast.")
    return 0


def _shown(items: Sequence[T], what: str, console: Console) -> Iterable[T]:
    """The items, with a progress bar on a terminal and nothing elsewhere."""
    return track(items, f"{what:<14}", console=console, disable=not console.is_terminal)
