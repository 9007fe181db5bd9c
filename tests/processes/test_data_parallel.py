"""`DistributedDataParallel` around a module whose forward maps a `ps.function`."""

from pathlib import Path

from tests.processes.launch import run_processes

SCRIPT = Path(__file__).parent / "scripts" / "data_parallel.py"


def test_two_processes_train_as_one(tmp_path):
    texts = run_processes(SCRIPT, 2, tmp_path)
    assert all("agreed" in text for text in texts)
