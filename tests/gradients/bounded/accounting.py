"""Counts the bytes of all tensors that live, as torch sees them: the storages that operations make,
until nobody holds them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):
    """The most bytes of storages made inside that lived at once, up to a few per cent."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        #: Bytes of all storages that are listed, though some may be gone.
        self._listed = 0
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in _pytree.tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf.untyped_storage())
        if self._listed > 1.03 * self.peak:
            self._look()
        return made

    def _add(self, storage: torch.UntypedStorage) -> None:
        known = self._storages.get(storage._cdata)
        if known is None or known[0].expired():
            self._listed += storage.nbytes() - (0 if known is None else known[1])
            self._storages[storage._cdata] = StorageWeakRef(storage), storage.nbytes()

    def _look(self) -> None:
        """Find out which storages live."""
        live = {key: each for key, each in self._storages.items() if not each[0].expired()}
        self._storages = live
        self._listed = sum(size for _, size in live.values())
        self.peak = max(self.peak, self._listed)
