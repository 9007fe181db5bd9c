"""Models are compared in float64."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
