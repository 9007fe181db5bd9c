"""Two ranks in network namespaces of their own, joined by a link that is cut."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes.launch import ROOT, end_processes

SCRIPT = Path(__file__).parent / "scripts" / "cut_link.py"


def run_ip(*arguments):
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


def make_namespace(name, link, address):
    run_ip("link", "set", link, "netns", name)
    run_ip("-n", name, "link", "set", "lo", "up")
    run_ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
    run_ip("-n", name, "link", "set", link, "up")


@pytest.fixture
def namespaces():
    """Two namespaces, each with one end of a link."""
    names = [f"penstock{os.getpid()}{end}" for end in "ab"]
    links = [f"ps{os.getpid()}{end}" for end in "ab"]
    try:
        for name in names:
            run_ip("netns", "add", name)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"this machine has no network namespaces for us: {error}")
    try:
        run_ip("link", "add", links[0], "type", "veth", "peer", "name", links[1])
        for number, (name, link) in enumerate(zip(names, links, strict=True)):
            make_namespace(name, link, f"10.231.7.{number + 1}")
        yield names, links
    finally:
        for name in names:
            run_ip("netns", "del", name)


def start(rank, name, link, folder):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "RENDEZVOUS": "tcp://10.231.7.1:29517",
        "GLOO_SOCKET_IFNAME": link,
        "FOLDER": str(folder),
    }
    command = ["ip", "netns", "exec", name, sys.executable, str(SCRIPT)]
    with (folder / f"{rank}.log").open("wb") as output:
        return subprocess.Popen(command, env=environment, stdout=output, stderr=output)


def test_a_cut_link_is_an_error_on_both_sides_within_the_limit(namespaces, tmp_path):
    names, links = namespaces
    started = [
        start(rank, name, link, tmp_path)
        for rank, (name, link) in enumerate(zip(names, links, strict=True))
    ]
    end = time.monotonic() + 100
    while time.monotonic() < end and len(list(tmp_path.glob("ready*"))) < 2:
        time.sleep(0.1)
    run_ip("-n", names[0], "link", "set", links[0], "down")
    (tmp_path / "cut").touch()
    codes, texts = end_processes(started, tmp_path, 60.0)
    assert codes == [0, 0], texts
    for rank, text in enumerate(texts):
        lines = [line for line in text.splitlines() if line.startswith("{")]
        found = json.loads(lines[-1])
        assert found["values"] == 2
        assert found["error"][0] == "ProcessError"
        assert f"rank {1 - rank} did not answer within 4 s." in found["error"][1]
        assert f"rank {rank} was  receiving its arguments" in found["error"][1]
