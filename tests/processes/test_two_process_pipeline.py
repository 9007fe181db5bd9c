"""The example of a pipeline in two processes: one is killed, and both go on from a checkpoint."""

import os
import re
import subprocess
import sys

from tests.processes.launch import ROOT

EXAMPLE = ROOT / "examples" / "two_process_pipeline.py"


def test_a_restarted_job_goes_on_from_the_last_checkpoint(tmp_path):
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    options = ["--folder", str(tmp_path), "--steps", "7", "--fail-at", "5", "--timeout", "30"]
    done = subprocess.run(
        [*torchrun, "--max-restarts", "1", str(EXAMPLE), *options],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert f"rank {rank}: goes on after step 4" in done.stdout
    losses: dict[str, set[str]] = {}
    for step, loss in re.findall(r"step (\d+) loss ([0-9.]+)", done.stdout):
        losses.setdefault(step, set()).add(loss)
    assert set(losses) == {str(step) for step in range(1, 8)}
    # Ranks agree, and a step that is taken again after the restart comes out the same.
    assert all(len(found) == 1 for found in losses.values()), done.stdout
