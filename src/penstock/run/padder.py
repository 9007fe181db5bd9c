"""Moves the elements of sequences to their places among padded ones, and back."""

from __future__ import annotations

import numpy as np
import torch

from penstock.plan.schedule import Integers
from penstock.plan.slots import ranges


class Padder:
    """Where the elements of some sequences are when each is padded to one length."""

    def __init__(self, lengths: Integers, length: int, device: torch.device) -> None:
        self.rows, self.length = len(lengths), length
        places = ranges(np.arange(self.rows) * length, lengths)
        self.places = torch.from_numpy(places).to(device, non_blocking=True)

    def pad(self, elements: torch.Tensor) -> torch.Tensor:
        """[elements of all, ...] -> [rows, length, ...], zeros behind."""
        inner = elements.shape[1:]
        padded = elements.new_zeros((self.rows * self.length, *inner))
        padded.index_copy_(0, self.places, elements)
        return padded.view(self.rows, self.length, *inner)

    def unpad(self, padded: torch.Tensor) -> torch.Tensor:
        """[rows, length, ...] -> [elements of all, ...]."""
        return padded.reshape(self.rows * self.length, *padded.shape[2:]).index_select(
            0, self.places
        )
