"""Programs over two ranks: values, gradients, who has them, and replicas that train as one."""

from pathlib import Path

from tests.processes.launch import run_processes

SCRIPT = Path(__file__).parent / "scripts" / "partitioned.py"


def test_two_replicas_over_two_ranks_each_agree_with_plain_python(tmp_path):
    texts = run_processes(SCRIPT, 4, tmp_path, limit=240.0)
    assert all("agreed" in text for text in texts)
