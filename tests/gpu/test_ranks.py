"""Ranks that share one GPU: rows on it travel through the host."""

from pathlib import Path

import pytest

from tests.processes.launch import run_processes

pytestmark = pytest.mark.gpu

SCRIPT = Path(__file__).parent / "scripts" / "ranks_on_one_gpu.py"


@pytest.mark.parametrize(
    ("backend", "count"), [("gloo", 2), ("cpu:gloo,cuda:gloo", 2), ("cpu:gloo,cuda:nccl", 1)]
)
def test_values_and_gradients_equal_plain_python(backend, count, tmp_path):
    texts = run_processes(SCRIPT, count, tmp_path, arguments=[backend])
    assert all("agreed" in text for text in texts)
