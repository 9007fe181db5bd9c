"""`f.collate` in the workers of a DataLoader: the training process plans nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.launch import ROOT

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.parametrize("method", ["spawn", "fork", "none"])
def test_workers_plan_and_the_trainer_runs(method):
    run_script("collate_workers.py", method)


def test_what_readers_give_goes_through_workers(tmp_path):
    run_script("read_and_collate.py", str(tmp_path))


def run_script(name, argument):
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / name), argument],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "agreed" in done.stdout
